"""Models of the user: ``module:package.file:function`` names a function that returns a ``torch.nn.Module``."""

import contextlib
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from types import ModuleType
from typing import Any

import torch
from torch import nn

from foveal.weights.catalogue import Preprocessing, from_json
from foveal.zoo import UnknownName
from foveal.zoo.features import FeatureNet
from foveal.zoo.foreign import Foreign, without_unknown_size
from foveal.zoo.transforms import at, from_timm

log = logging.getLogger("foveal")
MADE = "as the function made them"
_PIECES = ("forward_intermediates", "prune_intermediate_layers", "feature_info")
Function = Callable[..., Any]


def build(
    name: str, *, pretrained: bool, features_only: bool, out_indices: Sequence[int] | None, options: dict[str, Any]
) -> Foreign:
    """See `foreign.build`. The weights are what the function gave the model; it gets ``pretrained`` if it names it.

    The preprocessing is, first of all, the option ``preprocessing`` (of which the function hears only if it names it),
    the model's attribute ``preprocessing``, its ``pretrained_cfg`` as in timm; else ImageNet's, as a guess. The first
    two are a `Preprocessing` or a dict of its fields.
    """
    function = find_function(name)
    named, extras = named_options(function), dict(options)
    stated = extras.get("preprocessing") if "preprocessing" in named else extras.pop("preprocessing", None)
    if pretrained and "pretrained" in named:
        extras["pretrained"] = True
    elif pretrained:
        log.warning("%s: the function has no keyword pretrained; the weights are %s", name, MADE)
    own_way = features_only and "features_only" in named
    if own_way:
        extras |= {"features_only": True} | ({} if out_indices is None else {"out_indices": out_indices})

    model = without_unknown_size(lambda **given: _call(name, function, given), extras)
    spec = _preprocessing(name, model, stated)
    guessed = spec is None
    spec = spec or at(from_timm({}), _channels(model), 224)
    if features_only and not own_way:
        missing = [piece for piece in _PIECES if not hasattr(model, piece)]
        if missing:
            raise ValueError(f"{name}: gives no feature maps; for features_only it lacks {', '.join(missing)}")
        model = FeatureNet(model, out_indices)
    elif not features_only and not hasattr(model, "num_classes"):
        outputs = _outputs(model, at(spec, len(spec.mean), options.get("img_size", spec.shape)))
        if outputs is not None:
            model.num_classes = outputs  # type: ignore[assignment]
    if stated is not None:
        options = {**options, "preprocessing": asdict(spec)}
    return Foreign(model, options, spec, guessed=guessed, weights=MADE)


def find_function(name: str) -> Function:
    """The function that ``module:package.file:function`` names.

    The working folder is searched last, as the module may lie there and console scripts leave it out.

    Raises:
        ValueError: when the name has another form, the module fails to import, or it is no function.
        UnknownName: when there is no such module or function.
    """
    _, _, rest = name.partition(":")
    where, _, what = rest.partition(":")
    if not (what.isidentifier() and all(part.isidentifier() for part in where.split("."))):
        raise ValueError(f"{name}: has to be module:package.file:function, a dotted name that can be imported")
    module = _import(name, where)
    if not hasattr(module, what):
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise UnknownName("function", what, known, hint=f"module {where} has {', '.join(known[:5]) or 'none'}")
    function = getattr(module, what)
    if isinstance(function, nn.Module) or not callable(function):
        raise ValueError(f"{name}: is a {type(function).__name__}, has to be a function that returns a torch.nn.Module")
    return function


def named_options(function: Function) -> tuple[str, ...]:
    """The keywords that a function names; what it takes by ``**`` is not among them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # written in C
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


def _import(name: str, where: str) -> ModuleType:
    try:
        with _working_folder():
            return importlib.import_module(where)
    except (Exception, SystemExit) as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and f"{where}.".startswith(f"{absent}."):
            hint = f"for {name} it has to be on PYTHONPATH or in the working folder"
            raise UnknownName("module", absent, (), hint=hint) from error
        raise ValueError(f"{name}: importing {where} failed ({_said(error)})") from error


def _call(name: str, function: Function, options: dict[str, Any]) -> nn.Module:
    with contextlib.suppress(ValueError):  # written in C
        try:
            inspect.signature(function).bind(**options)
        except TypeError as error:
            named = ", ".join(named_options(function)) or "none"
            raise TypeError(f"{name}: {error}; its keywords: {named}") from None
    try:
        with _working_folder():
            model = function(**options)
    except (Exception, SystemExit) as error:
        if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
            raise TypeError(f"{name}: {error}") from error
        raise ValueError(f"{name}: the function failed ({_said(error)})") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name}: returned a {type(model).__name__}, has to return a torch.nn.Module")
    return model


@contextlib.contextmanager
def _working_folder() -> Iterator[None]:
    """The working folder is on ``sys.path``, behind all others, within the block."""
    here = os.getcwd()
    added = not {"", here} & {*sys.path}
    if added:
        sys.path.append(here)
    importlib.invalidate_caches()  # the file may be new
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {ascii(str(error))[1:-1]:.300}"


def _preprocessing(name: str, model: nn.Module, stated: Any) -> Preprocessing | None:
    """What the caller or the model says of its input; None when neither does."""
    offered = stated if stated is not None else getattr(model, "preprocessing", None)
    if isinstance(offered, Preprocessing):
        return offered
    try:
        if offered is not None and (stated is not None or isinstance(offered, Mapping)):
            return Preprocessing(**from_json(dict(offered)))
        cfg = getattr(model, "pretrained_cfg", None)
        return from_timm(dict(cfg)) if isinstance(cfg, Mapping) and cfg.get("mean") else None
    except (ValueError, TypeError, LookupError) as error:
        known = ", ".join(f.name for f in fields(Preprocessing))
        raise ValueError(f"{name}: preprocessing has to be a dict of {known} ({error})") from error


def _channels(model: nn.Module) -> int:
    return next((part.in_channels for part in model.modules() if isinstance(part, nn.Conv2d)), 3)


def _outputs(model: nn.Module, spec: Preprocessing) -> int | None:
    """Logits a picture, found by one run in eval mode on zeros; None when it gives anything else."""
    before = [(part, part.training) for part in model.modules()]
    some = next(model.parameters(), torch.empty(0))
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            found = model.eval()(torch.zeros(1, len(spec.mean), *spec.shape, device=some.device, dtype=some.dtype))
    except Exception as error:  # the user's code; it may want another size or kind of input
        log.info("%s: the number of classes is unknown (%s)", type(model).__name__, _said(error))
        return None
    finally:
        for part, training in before:
            part.training = training
    return found.shape[1] if isinstance(found, torch.Tensor) and found.ndim == 2 else None
