"""How much memory a run needs on each device, worked out from shapes before anything is allocated."""
