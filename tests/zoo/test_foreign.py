"""Models from elsewhere: `timm:NAME` and `module:package.file:function` through the same `create_model`."""

import itertools
import logging
import sys

import pytest
import timm
import torch
from torch import nn

import foveal
from foveal.eval.models import model_for
from foveal.tasks.classification import classify
from foveal.weights.catalogue import Preprocessing
from foveal.weights.saving import state_hash
from foveal.zoo import foreign, foreign_module, foreign_timm
from foveal.zoo.labels import imagenet_labels

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SPEC = {"size": 16, "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25], "crop_pct": 1.0}
NETS = """
import os, torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes=7, width=4, chans=3):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(chans, width, 3), nn.Dropout(), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))

def small(classes=7, width=4):
    return Net(classes, width)

def grey():
    return Net(chans=1)

def own(**kwargs):
    net = small()
    for key, value in kwargs.items():
        setattr(net, key, value)
    return net

def named(preprocessing, num_classes=3, pretrained=False):
    net = Net(num_classes)
    net.told = (preprocessing, pretrained)
    return net

def sized(img_size, features_only=False, out_indices=None):
    net = nn.Flatten()
    net.told = (img_size, features_only, out_indices)
    return net

def picky():
    return nn.Sequential(nn.Linear(5, 5))

def text(): return "a model"
def fails(): raise RuntimeError("no such file: weights.pth")
def leaves(): raise SystemExit(3)
def inner(): return Net(depth=3)
model = nn.Linear(2, 2)
number = 5
"""
_count = itertools.count()


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """``module:NAME`` of a module in the working folder, which is on no path."""
    name = f"mine_{next(_count)}"
    (tmp_path / f"{name}.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    yield f"module:{name}"
    sys.modules.pop(name, None)


# timm


def test_timm_names_with_and_without_prefix_are_one_model():
    bare, named = foveal.create_model("resnet18.a1_in1k"), foveal.create_model("timm:resnet18.a1_in1k")
    assert named.foveal.name == "timm:resnet18.a1_in1k"
    assert (named.foveal.arch, named.foveal.weights, named.foveal.sha256) == ("resnet18", "random weights", "")
    assert named.foveal.preprocessing == bare.foveal.preprocessing
    assert foveal.transforms_for(named) == foveal.transforms_for(bare)
    assert named.num_classes == 1000
    ours = foveal.create_model("timm:biformer_nano", num_classes=3)
    assert (ours.foveal.name, ours.num_classes) == ("biformer_nano", 3)


def test_timm_models_of_any_size_take_img_size_for_their_preprocessing():
    model = foveal.create_model("timm:resnet18", img_size=64, num_classes=3)
    assert foveal.transforms_for(model)(torch.zeros(80, 80, 3, dtype=torch.uint8).numpy()).shape == (3, 64, 64)
    with pytest.raises(TypeError, match="colour"):
        foveal.create_model("timm:resnet18", img_size=64, colour="red")


def test_timm_weights_are_named_hashed_and_labelled(monkeypatch):
    given = timm.create_model("resnet18")
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", lambda *_, **__: given.state_dict())
    model = foveal.create_model("timm:resnet18", pretrained=True)
    assert model.foveal.weights == "timm:resnet18"
    assert model.foveal.sha256 == state_hash(given)
    assert model.foveal.labels == imagenet_labels()
    assert foveal.create_model("timm:resnet18", pretrained=True, num_classes=5).foveal.labels == ()


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "timm:tf_efficientnet_lite0"])
def test_timm_weights_that_can_not_be_fetched(monkeypatch, name):
    def offline(*_, **__):
        raise FileNotFoundError("no network")

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", offline)
    with pytest.raises(foveal.WeightsError, match=r"could not fetch .*pass weights=FILE or weights='package'"):
        foveal.create_model(name, pretrained=True)


def test_timm_models_without_weights():
    with pytest.raises(foveal.WeightsError, match="timm has no weights for it; pass weights=FILE"):
        foveal.create_model("timm:convnext_atto_rms", pretrained=True)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tim:resnet18", r"no prefix 'tim:'; did you mean timm:\? there are timm:, module:"),
        ("open_clip:ViT-B-32/openai", "models of open_clip are not built yet, there are timm:"),
        ("hf:org/name", "models of hf are not built yet"),
        ("kornia:loftr", "models of kornia are not built yet"),
        ("timm:resnt18", "no model 'resnt18'; did you mean resnet18"),
        ("timm:resnet18.a1_in2k", "no weight 'resnet18.a1_in2k'; did you mean resnet18.a1_in1k"),
        ("tf_efficientnet_lite0.pakage", "did you mean tf_efficientnet_lite0.package"),
        ("timm:biformer_tiny.in2k", "did you mean biformer_tiny.in1k"),
    ],
)
def test_wrong_names_are_answered_with_near_ones(name, sentence):
    with pytest.raises(foveal.UnknownName, match=sentence):
        foveal.create_model(name)


def test_timm_errors_of_other_kinds_pass_as_they_are(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(foreign_timm.timm, "create_model", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        foveal.create_model("timm:resnet18")


# modules of the user


def test_a_function_gives_a_model_with_the_interfaces_of_ours(nets, caplog):
    before, path = torch.get_rng_state(), [*sys.path]
    model = foveal.create_model(f"{nets}:small", classes=5, width=6)
    info = model.foveal
    assert (info.name, info.arch, info.options) == (f"{nets}:small", f"{nets}:small", {"classes": 5, "width": 6})
    assert (info.weights, info.sha256) == ("as the function made them", state_hash(model))
    assert model.num_classes == 5  # found by one run
    assert all(part.training for part in model.modules())
    assert sys.path == path
    torch.set_rng_state(before)
    foveal.create_model(f"{nets}:small", classes=5, width=6)
    state = torch.get_rng_state()
    torch.set_rng_state(before)
    foreign_module.find_function(f"{nets}:small")(5, 6)
    assert torch.equal(torch.get_rng_state(), state)  # that run drew nothing
    answers = classify(model, torch.zeros(30, 40, 3, dtype=torch.uint8).numpy())
    assert len(answers) == 5
    assert "random" not in caplog.text


def test_unknown_preprocessing_is_said_and_taken_to_be_imagenets(nets, caplog):
    info = foveal.create_model(f"{nets}:small").foveal
    assert (info.preprocessing.mean, info.preprocessing.std, info.guessed) == (*IMAGENET, True)
    (record,) = caplog.records
    assert "preprocessing is unknown, taken to be Preprocessing(size=224" in record.message
    grey = foveal.create_model(f"{nets}:grey")
    assert foveal.transforms_for(grey)(torch.zeros(9, 9, dtype=torch.uint8).numpy()).shape == (1, 224, 224)
    assert grey.num_classes == 7


@pytest.mark.parametrize("offer", [SPEC, Preprocessing(16, (0.5,) * 3, (0.25,) * 3, crop_pct=1.0)])
@pytest.mark.parametrize("how", ["preprocessing", "attribute", "pretrained_cfg"])
def test_preprocessing_that_is_stated(nets, caplog, offer, how):
    if how == "preprocessing":
        model = foveal.create_model(f"{nets}:small", preprocessing=offer)
        assert model.foveal.options == {"preprocessing": vars(model.foveal.preprocessing)}
    elif how == "attribute":
        module = foreign_module.find_function(f"{nets}:own").__globals__
        module["offered"] = lambda: module["own"](preprocessing=offer)
        model = foveal.create_model(f"{nets}:offered")
    else:
        cfg = {"input_size": (3, 16, 16), "mean": (0.5,) * 3, "std": (0.25,) * 3, "crop_pct": 1.0}
        model = foveal.create_model(f"{nets}:own", pretrained_cfg=cfg)
    assert model.foveal.preprocessing == Preprocessing(16, (0.5,) * 3, (0.25,) * 3, crop_pct=1.0)
    assert not model.foveal.guessed
    assert not caplog.records


def test_preprocessing_that_can_not_be(nets):
    for wrong in ({"sise": 3}, {**SPEC, "size": 0}, 5):
        with pytest.raises(ValueError, match=r":small: preprocessing has to be a dict of size, mean, std"):
            foveal.create_model(f"{nets}:small", preprocessing=wrong)


def test_a_function_hears_what_it_names(nets, caplog):
    model = foveal.create_model(f"{nets}:named", preprocessing=SPEC, pretrained=True, num_classes=4)
    assert model.told == (SPEC, True)
    assert (model.foveal.preprocessing.size, model.num_classes) == (16, 4)
    sized = foveal.create_model(f"{nets}:sized", img_size=(8, 12), features_only=True, out_indices=(1,))
    assert sized.told == ((8, 12), True, (1,))
    assert sized.foveal.preprocessing.shape == (8, 12)
    assert sized.foveal.options == {"img_size": (8, 12), "features_only": True, "out_indices": (1,)}
    caplog.clear()
    foveal.create_model(f"{nets}:small", pretrained=True, img_size=32, preprocessing=SPEC)
    assert [r.message for r in caplog.records] == [
        f"{nets}:small: the function has no keyword pretrained; the weights are as the function made them"
    ]


def test_features_of_a_module(nets):
    net = foveal.create_model("module:timm.models.resnet:resnet18", features_only=True, out_indices=(0, -1))
    assert [m.shape[1] for m in net(torch.zeros(1, 3, 64, 64))] == [64, 512]
    assert net.foveal.preprocessing.crop_pct == 0.95
    with pytest.raises(ValueError, match="gives no feature maps; for features_only it lacks forward_intermediates"):
        foveal.create_model(f"{nets}:small", features_only=True)


def test_a_module_that_takes_no_pictures_has_no_num_classes(nets, caplog):
    with caplog.at_level(logging.INFO, "foveal"):
        model = foveal.create_model(f"{nets}:picky", preprocessing=SPEC)
    assert not hasattr(model, "num_classes")
    assert "the number of classes is unknown" in caplog.text


def test_a_module_that_can_not_be_hashed_has_no_hash(nets):
    with torch.device("meta"):
        model = foveal.create_model(f"{nets}:small")
    assert (model.foveal.sha256, model.num_classes) == ("", 7)
    assert foreign.hash_of(nn.LazyLinear(3)) == ""


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("module:mine", ValueError, "has to be module:package.file:function"),
        ("module:./mine.py:small", ValueError, "has to be module:package.file:function"),
        ("module:not_there.nets:small", KeyError, "no module 'not_there'; for .* PYTHONPATH or in the working folder"),
        ("module:foveal.not_there:small", KeyError, r"no module 'foveal\.not_there'"),
        ("{}:smal", KeyError, r"no function 'smal'; did you mean small\? module mine_\d+ has Net, small"),
        ("{}:model", ValueError, "is a Linear, has to be a function that returns"),
        ("{}:number", ValueError, "is a int, has to be a function"),
        ("{}:text", ValueError, r":text: returned a str, has to return a torch\.nn\.Module"),
        ("{}:fails", ValueError, r":fails: the function failed \(RuntimeError: no such file: weights\.pth\)"),
        ("{}:leaves", ValueError, r"the function failed \(SystemExit: 3\)"),
        ("{}:inner", TypeError, r":inner: .*unexpected keyword argument 'depth'"),
        ("{}:named", TypeError, r"required argument: 'preprocessing'; its keywords: preprocessing, num_classes"),
    ],
)
def test_mistakes_are_one_sentence_that_names_the_module(nets, name, kind, sentence):
    with pytest.raises(kind, match=sentence) as caught:
        foveal.create_model(name.format(nets))
    assert "\n" not in str(caught.value)


def test_a_keyword_that_the_function_does_not_take(nets):
    with pytest.raises(
        TypeError, match=r":small: got an unexpected keyword argument 'depth'; its keywords: classes, width"
    ):
        foveal.create_model(f"{nets}:small", depth=3)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def f(:", r"importing broken_\d+ failed \(SyntaxError"),
        ("import not_there_at_all", r"importing broken_\d+ failed \(ModuleNotFoundError: No module named"),
        ("import sys\nsys.exit(2)", r"importing broken_\d+ failed \(SystemExit: 2\)"),
    ],
)
def test_modules_that_do_not_import(tmp_path, monkeypatch, source, sentence):
    name = f"broken_{next(_count)}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=sentence):
        foveal.create_model(f"module:{name}:f")


# files


def test_a_file_of_a_module_keeps_labels_and_preprocessing_and_chooses_no_options(nets, tmp_path, caplog):
    model = foveal.create_model(f"{nets}:small", width=6, preprocessing=SPEC)
    path = foveal.save(model, tmp_path / "w.safetensors")
    again = foveal.create_model(f"{nets}:small", width=6, weights=path)
    assert state_hash(again) == state_hash(model)
    assert again.foveal.preprocessing == model.foveal.preprocessing
    assert (again.foveal.weights, again.foveal.guessed) == (str(path), False)
    given = foveal.create_model(f"{nets}:small", width=6, weights=path, preprocessing={**SPEC, "size": 8})
    assert given.foveal.preprocessing.size == 8
    with pytest.raises(foveal.WeightsError, match="another shape"):
        foveal.create_model(f"{nets}:small", weights=path)  # the file's width=6 is not handed to the function
    with pytest.raises(
        foveal.WeightsError, match=r"was saved from module:mine_\d+:small; where you trust that, create"
    ):
        foveal.load(path)
    assert not caplog.records
    torch.save(model.state_dict(), tmp_path / "w.pth")
    plain = foveal.create_model(f"{nets}:small", width=6, weights=tmp_path / "w.pth")
    assert plain.foveal.guessed
    assert [r.message.partition(": ")[2][:28] for r in caplog.records] == ["its preprocessing is unknown"]
    assert model_for(f"{nets}:grey", "random", classes=9).num_classes == 7


def test_evaluation_tells_a_function_the_class_count_only_where_it_asks(nets):
    assert model_for(f"{nets}:small", "random", classes=9).num_classes == 7
    assert model_for("timm:resnet18", "random", classes=9).num_classes == 9
    assert foreign.accepts(f"{nets}:named", "num_classes")
    assert not foreign.accepts("module:math:sqrt", "num_classes")


def test_a_saved_timm_model_comes_back_by_its_prefix(tmp_path):
    model = foveal.create_model("timm:resnet18", num_classes=3, in_chans=1)
    again = foveal.load(foveal.save(model, tmp_path / "w.safetensors"))
    assert again.foveal.name == "timm:resnet18"
    assert state_hash(again) == state_hash(model)


def test_functions_without_a_signature_are_called_as_they_are(nets, monkeypatch):
    def no_signature(_):
        raise ValueError("no signature found for builtin")

    monkeypatch.setattr(foreign_module.inspect, "signature", no_signature)
    assert foveal.create_model(f"{nets}:small", classes=2).num_classes == 2
