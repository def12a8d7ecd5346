"""Config files become validated dataclasses; every mistake names the key and what is known."""

from __future__ import annotations

import dataclasses

import pytest

from tests.run.small import small_config
from vict_jax import config as config_lib


def test_default_config_round_trips() -> None:
    run = config_lib.from_config_dict(config_lib.default_config("alfworld"))
    assert run.credit.method == "vict"
    assert run.env.options.max_steps == 50
    assert config_lib.to_plain(run)["ppo"]["clip_low"] == run.ppo.clip_low


def test_every_value_of_a_config_is_read() -> None:
    """No key of the ConfigDict is dropped on the way (field report 40)."""
    values = small_config().to_dict()
    plain = config_lib.to_plain(config_lib.from_config_dict(small_config()))
    assert config_lib.from_plain(plain) == config_lib.from_config_dict(small_config())
    for section, content in values.items():
        if not isinstance(content, dict):
            assert plain[section] == content
            continue
        for key, value in content.items():
            expected = list(value) if isinstance(value, tuple) else value
            assert plain[section][key] == expected, f"{section}.{key}"


@pytest.mark.parametrize(
    ("section", "key", "near"),
    [("train", "update", "updates"), ("ppo", "clip_lo", "clip_low"), ("env", "worker", "workers")],
)
def test_field_report_40_unknown_key_names_the_known_ones(section: str, key: str, near: str) -> None:
    config = small_config().unlock()
    config[section][key] = 1
    with pytest.raises(ValueError, match=f"unknown config key '{section}.{key}'.*{near}"):
        config_lib.from_config_dict(config)


def test_unknown_section() -> None:
    config = small_config().unlock()
    config.trian = {"updates": 1}
    with pytest.raises(ValueError, match=r"unknown config key 'trian'; did you mean 'train'"):
        config_lib.from_config_dict(config)


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("train", "groups", 0, "train.groups=0"),
        ("eval", "split", "test", "eval.split='test'.*valid_unseen"),
        ("credit", "method", "vikt", "credit.method='vikt'.*vict"),
        ("credit", "method", "dense+vict", r"credit.method='dense\+vict'.*it corrects an outcome advantage"),
        ("credit", "core", "best", "core='best'"),
        ("rollout", "temperature", 0.0, "rollout.temperature=0.0"),
        ("train", "updates", 2.5, "'train.updates' is 2.5"),
        ("train", "updates", True, "'train.updates' is True"),
        ("env", "timeout_s", 0.0, "env.timeout_s=0.0"),
    ],
)
def test_bad_value_is_named(section: str, key: str, value: object, message: str) -> None:
    config = small_config().unlock()
    with config.ignore_type():
        config[section][key] = value
    with pytest.raises(ValueError, match=message):
        config_lib.from_config_dict(config)


def test_sections_of_credit_methods_are_options_of_their_own() -> None:
    config = small_config().unlock()
    config.credit.update(method="gigpo+vict")
    config.credit.gigpo.update(mode="mean", omega=0.5)
    config_lib.check_overrides(config, ["credit.gigpo.mode", "credit.steps.pay"])
    run = config_lib.from_config_dict(config)
    assert (run.credit.method, run.credit.options.gigpo.mode) == ("gigpo+vict", "mean")
    assert config_lib.from_plain(config_lib.to_plain(run)) == run
    config.credit.gigpo.mode = "std"
    with pytest.raises(ValueError, match=r"gigpo\.mode='std' is not allowed"):
        config_lib.from_config_dict(config)
    with config.unlocked():
        config.credit.gigpo = {"modus": "mean"}
    with pytest.raises(ValueError, match=r"unknown config key 'credit.gigpo.modus'; did you mean 'mode'\?"):
        config_lib.from_config_dict(config)
    with pytest.raises(ValueError, match="did you mean 'gamma'"):
        config_lib.check_overrides(small_config(), ["credit.gigpo.gama"])


def test_unknown_environment() -> None:
    with pytest.raises(ValueError, match=r"no environment 'alfwrld'.*one of \['alfworld', "):
        config_lib.default_config("alfwrld")


@pytest.mark.parametrize(
    ("dotted", "message"),
    [
        ("train.upates", "did you mean 'updates'"),
        ("trian.updates", "did you mean 'train'"),
        ("seed.updates", "'seed' is a value, not a section"),
    ],
)
def test_command_line_overrides_are_checked(dotted: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_lib.check_overrides(small_config(), [dotted])
    config_lib.check_overrides(small_config(), ["train.updates", "seed"])


def test_differences_name_the_changed_keys() -> None:
    old = config_lib.to_plain(config_lib.from_config_dict(small_config()))
    config = small_config().unlock()
    config.train.updates = 9
    config.env.workers = 2
    new = config_lib.to_plain(config_lib.from_config_dict(config))
    assert config_lib.differences(old, new) == ["train.updates: 3 -> 9"]  # workers change no result


def test_options_are_frozen() -> None:
    run = config_lib.from_config_dict(small_config())
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.train.updates = 1  # type: ignore[misc]
