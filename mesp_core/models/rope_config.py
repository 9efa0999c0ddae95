"""Which rotation a config.json asks for: `rope_theta`, `rope_scaling`, and the newer `rope_parameters`.

mlx-lm's llama and qwen2 read `rope_theta` and `rope_scaling` and nothing else, and an adapter is used there. So that is what
is computed; a file which asks for another rotation elsewhere is refused, because its adapter would fit only one of the two.
"""

from dataclasses import replace

from mesp_core.errors import CheckpointError
from mesp_core.models.architecture import RopeSpec
from mesp_core.models.config_reader import ConfigReader, shown

KINDS = ("default", "linear", "llama3")


def rope_spec(config: ConfigReader, default_theta: float) -> RopeSpec:
    """The rotation that mlx-lm computes.

    Raises:
        CheckpointError: if it is none of ours, or the file contradicts it or itself.
    """
    theta = config.real("rope_theta", default_theta)
    traditional = config.boolean("rope_traditional", False)
    config.require("partial_rotary_factor", 1.0, 1.0, None)
    scaling = config.object("rope_scaling")
    spec = plain = RopeSpec(theta, traditional=traditional)
    if scaling is not None:
        spec = _scaled("rope_scaling", scaling, plain)
        _refuse_unless_same(config, "rope_scaling", _with_its_theta(scaling, spec), spec)
    parameters = config.object("rope_parameters")
    if parameters is not None and parameters.values:
        asked = _with_its_theta(parameters, _scaled("rope_parameters", parameters, plain))
        _refuse_unless_same(config, "rope_parameters", asked, spec)
    return spec


def _scaled(name: str, scaling: ConfigReader, plain: RopeSpec) -> RopeSpec:
    """What one object says, its kind under `type` (which mlx-lm looks at first) or `rope_type`."""
    first, second = scaling.values.get("type") or None, scaling.values.get("rope_type", "default")
    spec = _of_kind(name, scaling, first or second, plain)
    if first is not None and "rope_type" in scaling.values and second is not None and second != first:
        other = _of_kind(name, scaling, second, plain)
        if other != spec:
            scaling.fail("type", first, f"the same as rope_type ({shown(second)})")
    return spec


def _of_kind(name: str, scaling: ConfigReader, kind: object, plain: RopeSpec) -> RopeSpec:
    if kind not in KINDS:
        raise CheckpointError(f"{scaling.file}: {name} is of the type {shown(kind)}; supported are {', '.join(KINDS)}.")
    scaling.require("partial_rotary_factor", 1.0, 1.0, None)
    for field, value in scaling.values.items():
        if isinstance(value, dict):
            scaling.fail(field, value, "a number or a name; layers of several rotations are not supported")
    if kind == "linear":
        return replace(plain, position_scale=1.0 / scaling.real("factor"))
    if kind == "llama3":
        llama3 = (
            scaling.real("factor"),
            scaling.real("low_freq_factor", 1.0),
            scaling.real("high_freq_factor", 4.0),
            scaling.real("original_max_position_embeddings", 8192),
        )
        return replace(plain, llama3=llama3)
    return plain


def _with_its_theta(scaling: ConfigReader, spec: RopeSpec) -> RopeSpec:
    """`spec` with the base that stands inside the object, where newer files have it."""
    if scaling.values.get("rope_theta") is None:
        return spec
    return replace(spec, theta=scaling.real("rope_theta"))


def _refuse_unless_same(config: ConfigReader, name: str, asked: RopeSpec, spec: RopeSpec) -> None:
    if asked != spec:
        raise CheckpointError(
            f"{config.file}: {name} asks for {_in_words(asked)}, but mlx-lm, where the adapter will be used, reads "
            f"rope_theta beside it and rope_scaling alone: {_in_words(spec)}. Write into these two what is right."
        )


def _in_words(spec: RopeSpec) -> str:
    words = f"rope_theta {spec.theta:g}"
    if spec.llama3 is not None:
        words += " and llama3 scaling by factor {:g}, low {:g}, high {:g}, from {:g} positions".format(*spec.llama3)
    elif spec.position_scale != 1.0:
        words += f" and linear scaling by {1 / spec.position_scale:g}"
    return words
