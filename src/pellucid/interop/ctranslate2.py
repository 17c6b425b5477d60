"""Our model as one of CTranslate2's (github.com/OpenNMT/CTranslate2): written, checked on the spot, self-contained.

CTranslate2 is a C++ engine that needs no PyTorch where it translates. What is exported computes the same function;
`not_exportable` names the settings that it has no place for. The folder also holds our tokenizers and settings, so that
`pellucid translate FOLDER` works with it, and so do CTranslate2 and sentencepiece by themselves:

    translator = ctranslate2.Translator("FOLDER")
    spm = sentencepiece.SentencePieceProcessor(model_file="FOLDER/tokenizer.model")
    [result] = translator.translate_batch([[*spm.encode("Good morning!", out_type=str), "</s>"]])
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.config import BEGIN_ID, END_ID, ModelConfig
from pellucid.decoding.exported import places_of, require_library
from pellucid.errors import ConfigError, RunError
from pellucid.model import Transformer
from pellucid.text.tokenizer import Tokenizer

__all__ = ["not_exportable", "to_ctranslate2"]


def not_exportable(config: ModelConfig) -> tuple[str, ...]:
    """The settings that this export has no place for, each with what to choose instead.

    >>> not_exportable(ModelConfig.tiny(positions="sinusoidal"))
    ()
    """
    if config.positions in ("rotary", "alibi", "t5"):
        return (
            f"model.positions = '{config.positions}' is not exported to CTranslate2; train with 'sinusoidal', 'learned' "
            "or 'none'",
        )
    return ()


def to_ctranslate2(
    model: Transformer, source: Tokenizer, target: Tokenizer, folder: Path, quantization: str | None = None
) -> None:
    """Write a model as CTranslate2 reads it; the folder appears whole.

    Args:
        model: the network.
        source: text <-> ids of the source language.
        target: text <-> ids of the target language.
        folder: a new one.
        quantization: None keeps float32; "int8", "int16", "float16" as CTranslate2 knows them.

    Raises:
        ConfigError: the model has settings that cannot be exported; they are named.
        InteropError: CTranslate2 is not installed.
        RunError: the folder exists.
    """
    if refused := not_exportable(model.config):
        raise ConfigError("; ".join(refused))
    require_library("ctranslate2", "CTranslate2", "ctranslate2")
    if folder.exists():
        raise RunError(f"{folder} exists already; choose a new folder")
    spec = _specification(model)
    words = target.names()
    spec.register_source_vocabulary(source.names())
    spec.register_target_vocabulary(words)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = words[1], words[BEGIN_ID], words[END_ID]
    spec.config.decoder_start_token = words[BEGIN_ID]
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        spec.save(str(draft))
        draft.chmod(0o755)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _specification(model: Transformer) -> Any:
    """CTranslate2's description of the network, with its weights."""
    from ctranslate2.specs import common_spec, transformer_spec

    config = model.config
    activation = common_spec.Activation.RELU if config.activation == "relu" else common_spec.Activation.GELU
    spec = transformer_spec.TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=config.norm == "pre",
        activation=activation,
    )
    modules: Any = model.stacks
    for layer, own in zip(modules.encoder.layers, spec.encoder.layer, strict=True):
        _attention(layer.self_attention, own.self_attention, layer.self_residual.norm)
        _feed_forward(layer, own.ffn)
    for layer, own in zip(modules.decoder.layers, spec.decoder.layer, strict=True):
        _attention(layer.self_attention, own.self_attention, layer.self_residual.norm)
        _attention(layer.cross_attention, own.attention, layer.cross_residual.norm, crossing=True)
        _feed_forward(layer, own.ffn)
    for stack, own in ((modules.encoder, spec.encoder), (modules.decoder, spec.decoder)):
        own.scale_embeddings = True
        if stack.final_norm is not None:
            _norm(stack.final_norm, own.layer_norm)
    spec.encoder.embeddings[0].weight = _numbers(model.source_embedding.weight)
    spec.decoder.embeddings.weight = _numbers(model.target_embedding.weight)
    spec.encoder.position_encodings.encodings = _table(model.source_positions, config)
    spec.decoder.position_encodings.encodings = _table(model.target_positions, config)
    _linear(spec.decoder.projection, model.head)
    return spec


def _numbers(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().numpy()


def _linear(spec: Any, *maps: nn.Linear) -> None:
    """Write linear maps of the same states, one below another."""
    weights: list[Tensor] = [linear.weight for linear in maps]
    spec.weight = _numbers(torch.cat(weights))
    biases: list[Tensor] = [
        linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias for linear in maps
    ]
    spec.bias = _numbers(torch.cat(biases))


def _norm(norm: nn.LayerNorm, spec: Any) -> None:
    spec.gamma, spec.beta = _numbers(norm.weight), _numbers(norm.bias)


def _attention(attention: Any, spec: Any, norm: nn.LayerNorm, *, crossing: bool = False) -> None:
    """Write an attention: in cross-attention queries stand apart from keys and values."""
    if crossing:
        _linear(spec.linear[0], attention.query)
        _linear(spec.linear[1], attention.key, attention.value)
    else:
        _linear(spec.linear[0], attention.query, attention.key, attention.value)
    _linear(spec.linear[-1], attention.output)
    _norm(norm, spec.layer_norm)


def _feed_forward(layer: Any, spec: Any) -> None:
    _linear(spec.linear_0, layer.feed_forward.inner)
    _linear(spec.linear_1, layer.feed_forward.outer)
    _norm(layer.feed_forward_residual.norm, spec.layer_norm)


def _table(positions: Any, config: ModelConfig) -> Any:
    """What is added at each position."""
    where = next(iter(positions.parameters()), torch.empty(0)).device
    told: Tensor = positions(torch.zeros(1, places_of(config), config.d_model, device=where))
    return _numbers(told[0])
