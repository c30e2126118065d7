"""The description of an architecture: its figures and tensors in Hugging Face folders and in GGUF files, its
parameters, and its forward function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures.parameters import ForwardContext, Parameter
from homenode.model.config.folder_config import FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

Conversion = Callable[[Tensors, ModelSpec], dict[str, TensorEntry]]


def renamed(layers: str, inside: str, outside: str = "") -> dict[str, str]:
    """`FolderFormat.modules` out of pairs such as "attn.out_proj=self_attn.o_proj" with spaces between: `inside` of
    layers, whose names in the class begin with `layers`, and `outside`. A name alone is ours as well, and [qkv] stands
    for each of its letters in turn.
    """
    pairs = [(layers + theirs, "model.layers.{layer}." + ours) for theirs, ours in _split_pairs(inside)]
    return dict(_split_pairs(outside) + pairs)


def _split_pairs(text: str) -> list[tuple[str, str]]:
    pairs = []
    for pair in text.split():
        _, bracket, rest = pair.partition("[")
        letters = rest.partition("]")[0]
        for letter in letters or [""]:
            theirs, _, ours = (pair.replace(f"[{letters}]", letter) if bracket else pair).partition("=")
            pairs.append((theirs, ours or theirs))
    return pairs


def as_stored(tensors: Tensors, _spec: ModelSpec) -> dict[str, TensorEntry]:
    """The `Conversion` of files that hold every parameter by itself."""
    return dict(tensors)


def always(_fields: Fields) -> bool:
    """`GgufFormat.accepts` of an architecture that has its name alone."""
    return True


def never(_fields: Fields) -> bool:
    """`GgufFormat.accepts` of an architecture that no file is of."""
    return False


@dataclass(frozen=True)
class FolderFormat:
    """A model of the architecture as a Hugging Face folder.

    `class_name`: its class in transformers, which config.json names; `model_types`: what a config.json without a class
    may call it besides the architecture's own name; `older_classes`: what published folders call the class as well;
    `picture_classes`: the classes of models that see pictures and have one of this architecture for text. All of these
    names are written out in the architecture's own module, where the registry looks for them. `modules`: what parts of
    the class are called that parameter tables call otherwise, name -> name, with `{layer}`; names in folders may lack
    `transformer.` in front, and do here. `read`: the figures. `fields`: the fields of config.json that `read` asks for
    besides those of every architecture (`known_fields.READ`); `harmless`: fields that change nothing in this
    architecture, with the reason. `convert`: what its tensors are turned to, such as matrices that lie in one.
    """

    class_name: str
    read: Callable[[FolderConfig], ModelSpec]
    fields: frozenset[str]
    harmless: Mapping[str, str] = field(default_factory=dict)
    model_types: tuple[str, ...] = ()
    picture_classes: tuple[str, ...] = ()
    older_classes: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    convert: Conversion = as_stored

    def of_class(self, class_name: str, **changes: Any) -> FolderFormat:
        """The same of another class, which has none of the other names of this one, nor its harmless fields, with
        changes of fields.
        """
        others: dict[str, Any] = {"model_types": (), "picture_classes": (), "older_classes": (), "harmless": {}}
        return replace(self, class_name=class_name, **(others | changes))

    @property
    def class_names(self) -> tuple[str, ...]:
        """Whatever config.json may call the class."""
        return (self.class_name, *self.older_classes)


@dataclass(frozen=True)
class GgufFormat:
    """A model of the architecture as a GGUF file.

    `name`: what `general.architecture` says; `picture_names`: what it says of the text of models that see pictures,
    where that is another name; `further_names`: what it may say besides. All of these are written out in the
    architecture's own module, where the registry looks for them. `accepts`: of the key-value pairs, whether they mean
    this one of several architectures that have that name. `read`: the figures. `keys`: those that `read` asks for
    besides those of every architecture (`known_keys.READ`). `names`: tensors that are no parameter by themselves, such
    as several matrices in one: their name in the file -> the Hugging Face name, both with `{layer}`. `convert`: what
    the tensors are turned to, such as rows of q and k in another order. `with_or_without_experts`: files of both kinds
    are of it.
    """

    name: str
    read: Callable[[GgufConfig], ModelSpec]
    accepts: Callable[[Fields], bool] = always
    keys: frozenset[str] = frozenset()
    picture_names: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    convert: Conversion = as_stored
    with_or_without_experts: bool = False
    further_names: tuple[str, ...] = ()

    @property
    def all_names(self) -> tuple[str, ...]:
        """Whatever `general.architecture` says in files of the architecture."""
        return (self.name, *self.picture_names, *self.further_names)

    def without_files(self) -> GgufFormat:
        """Return the format for an architecture that converters turn into the one that has this format, or that no
        converter knows: no file is of it.
        """
        return replace(self, accepts=never)


@dataclass(frozen=True)
class Architecture:
    """A kind of decoder. `name`: that of its module.

    `forward` is written on `Ops` only. It returns the logits of the selected rows, or of a stage that is not the last
    its rows of all tokens.
    """

    name: str
    folder: FolderFormat
    gguf: GgufFormat
    parameters: tuple[Parameter, ...]
    forward: Callable[[Ops, ForwardContext], Tensor]

    def of_class(
        self,
        name: str,
        class_name: str,
        *,
        parameters: tuple[Parameter, ...] | None = None,
        forward: Callable[[Ops, ForwardContext], Tensor] | None = None,
        gguf: GgufFormat | None = None,
        **folder: Any,
    ) -> Architecture:
        """Another one like it, called `name`. `gguf`: its files; None: there are none (`GgufFormat.without_files`).
        `folder`: what its format differs in.
        """
        return Architecture(
            name,
            self.folder.of_class(class_name, **folder),
            self.gguf.without_files() if gguf is None else gguf,
            self.parameters if parameters is None else parameters,
            self.forward if forward is None else forward,
        )

    @property
    def has_experts(self) -> bool:
        """Return whether its layers, or some, have experts in place of an MLP."""
        return any(parameter.per_expert for parameter in self.parameters)
