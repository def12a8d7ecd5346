"""The credit viewer: which step of which rollout got what advantage, on what evidence (docs/viewer.md)."""
