"""Where a TPU slice is: names and types, checked before anything is created."""

from __future__ import annotations

import dataclasses
import re

BACKENDS = ("tpu_vm", "queued", "xpk")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A generation of TPU, as Google Cloud names its slices: `NAME-COUNT`.

    Attributes:
      counts: the counts that exist; empty: every multiple of `step` up to `most` may.
      runtime: the usual runtime version of its VMs.
    """

    runtime: str
    counts: tuple[int, ...] = ()
    step: int = 8
    most: int = 0

    def allowed(self) -> str:
        """The counts in words."""
        if self.counts:
            return "one of " + ", ".join(map(str, self.counts))
        return f"a multiple of {self.step} up to {self.most}"

    def has(self, count: int) -> bool:
        """Whether a slice of this count can exist."""
        if self.counts:
            return count in self.counts
        return 0 < count <= self.most and count % self.step == 0


# Google Cloud's pages of each version. v2 to v4 and v5p count TensorCores, v5e and v6e chips; the names of
# the runtimes are those of its page "TPU software versions".
KINDS = {
    "v2": Kind("tpu-ubuntu2204-base", (8, 32, 128, 256, 512)),
    "v3": Kind("tpu-ubuntu2204-base", (8, 32, 64, 128, 256, 512, 1024, 2048)),
    "v4": Kind("tpu-ubuntu2204-base", most=8192),
    "v5litepod": Kind("v2-alpha-tpuv5-lite", (1, 4, 8, 16, 32, 64, 128, 256)),
    "v5p": Kind("v2-alpha-tpuv5", most=12288),
    "v6e": Kind("v2-alpha-tpuv6e", (1, 4, 8, 16, 32, 64, 128, 256)),
}

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z0-9]+")
_RUNTIME = re.compile(r"[a-z0-9][-a-z0-9._]*")
_BUCKET = re.compile(r"gs://([a-z0-9][-a-z0-9_.]{1,220}[a-z0-9])((/[^/]+)*)/?")
_REGISTRY = re.compile(r"(gcr\.io|([a-z0-9-]+[-.])?docker\.pkg\.dev)/")


def _require(ok: bool, flag: str, value: object, allowed: str) -> None:
    if value in (None, ""):
        raise ValueError(f"--{flag}=... is needed: {allowed}")
    if not ok:
        raise ValueError(f"--{flag}={value} is not allowed: {allowed}")


def _require_name(flag: str, value: str, most: int) -> None:
    form = f"lower-case letters, digits and inner hyphens, a letter first, at most {most} characters"
    _require(bool(_NAME.fullmatch(value)) and len(value) <= most, flag, value, form)


def canonical_accelerator(value: str) -> str:
    """Google Cloud's name of a slice type; `v5e-16` is its `v5litepod-16`.

    Raises:
      ValueError: an unknown kind, or a count that the kind does not have.
    """
    kind, _, count = value.rpartition("-")
    kind = "v5litepod" if kind == "v5e" else kind
    form = f"KIND-COUNT with one of the kinds {', '.join(KINDS)}, e.g. v5p-64"
    _require(kind in KINDS and count.isdecimal(), "accelerator", value, form)
    _require(
        KINDS[kind].has(int(count)), "accelerator", value, f"the count of {kind} is {KINDS[kind].allowed()}"
    )
    return f"{kind}-{int(count)}"


@dataclasses.dataclass(frozen=True)
class Place:
    """A slice and how it is reached. Every field is checked; errors name the flag.

    Attributes:
      name: of the slice (and its queued resource), or of the XPK workload.
      backend: "tpu_vm" (created at once or not at all), "queued" (waits for capacity) or "xpk" (GKE).
      version: runtime of the VMs; unused by XPK. spot: cheaper, and may be taken away at any time.
      cluster: XPK: a cluster that exists; None: one named as the workload, created and deleted with it.
      image: XPK: the container image that the code is put into. max_restarts: XPK: after lost machines.
      create_args, ssh_args: handed to the creating command, and to ssh and scp, as they are.
      poll_s: seconds between two looks at a state. grace_s: seconds that a training has to save.
    """

    name: str
    project: str
    zone: str
    accelerator: str
    version: str | None = None
    backend: str = "tpu_vm"
    spot: bool = False
    cluster: str | None = None
    image: str = "python:3.11"
    max_restarts: int = 20
    create_args: tuple[str, ...] = ()
    ssh_args: tuple[str, ...] = ()
    poll_s: float = 20.0
    grace_s: int = 180

    def __post_init__(self) -> None:
        _require(self.backend in BACKENDS, "backend", self.backend, f"one of {', '.join(BACKENDS)}")
        self._check_names()
        object.__setattr__(self, "accelerator", canonical_accelerator(self.accelerator))
        if self.backend == "xpk":
            self._check_xpk()
        else:
            self._check_vm()
        _require(self.poll_s > 0, "poll_seconds", self.poll_s, "more than 0")
        _require(self.grace_s > 0, "grace_seconds", self.grace_s, "more than 0")

    def _check_names(self) -> None:
        most = 40 if self.backend == "xpk" else 63
        _require_name("name", self.name, most)
        form = (
            "the id of a Google Cloud project (6 to 30 lower-case letters, digits and hyphens), not its title"
        )
        _require(bool(_PROJECT.fullmatch(self.project)), "project", self.project, form)
        form = "a zone such as us-east5-a, not a region"
        _require(bool(_ZONE.fullmatch(self.zone)), "zone", self.zone, form)

    def _check_vm(self) -> None:
        usual = KINDS[self.accelerator.rpartition("-")[0]].runtime
        form = f"a TPU runtime version; for {self.accelerator} the usual one is {usual}"
        _require(bool(_RUNTIME.fullmatch(self.version or "")), "version", self.version, form)
        if self.cluster is not None:
            raise ValueError(
                f"--cluster={self.cluster} has no effect with --backend={self.backend}; leave it out"
            )

    def _check_xpk(self) -> None:
        if self.version:
            raise ValueError(f"--version={self.version} has no effect with --backend=xpk; leave it out")
        if self.ssh_args:
            raise ValueError(f"--ssh_arg={self.ssh_args[0]} has no effect with --backend=xpk; leave it out")
        if self.cluster is not None:
            _require_name("cluster", self.cluster, 40)
        form = "a base image such as python:3.11; XPK adds no code to an image of Google's registries"
        _require(not _REGISTRY.match(self.image), "image", self.image, form)
        _require(self.max_restarts >= 0, "max_restarts", self.max_restarts, "0 or more")

    @property
    def owns_cluster(self) -> bool:
        """Whether the XPK cluster is created and deleted with the workload."""
        return self.cluster is None

    @property
    def cluster_name(self) -> str:
        """The XPK cluster."""
        return self.name if self.cluster is None else self.cluster


def bucket_of(workdir: str) -> tuple[str, str] | None:
    """Bucket and path of a `gs://` directory, None for a path.

    Raises:
      ValueError: `gs://` without a proper bucket, or a path that is not absolute.
    """
    if workdir.startswith("gs://"):
        match = _BUCKET.fullmatch(workdir)
        _require(match is not None, "workdir", workdir, "gs://BUCKET/PATH")
        assert match is not None
        return match.group(1), match.group(2).strip("/")
    form = (
        "gs://BUCKET/PATH, or an absolute path of storage that all workers share (copying replaces the code)"
    )
    _require(workdir.startswith("/"), "workdir", workdir, form)
    return None
