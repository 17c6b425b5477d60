"""What the network is: its widths, depths and habits; no torch."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pellucid.config.settings import Count, Probability, Settings

__all__ = ["ModelConfig"]


class ModelConfig(Settings):
    """The network: its widths, depths and habits (Vaswani et al. 2017, section 3 and table 3).

    `norm` is "post" (the paper: LayerNorm(x + Sublayer(x))) or "pre" (x + Sublayer(LayerNorm(x))). `tie_embeddings`
    shares weights: "decoder" between target embedding and output projection, "all" with the source embedding too,
    which needs one shared vocabulary. `dropout` acts where the paper has it: on each sublayer's output and on the sum
    of embeddings and positions; `attention_dropout` and `activation_dropout` are separate, and off by default.

    `positions` says how the network is told where a token stands. "sinusoidal" (the paper) and "learned", which ends at
    `max_positions`, are added to the embeddings; "rotary" turns queries and keys, "alibi" and "t5" add to the scores, each
    in every self-attention and by distance alone; "none" tells nothing. `position_layout` is the order of numbers that
    belong together, the sine and cosine of a sinusoid or the two of a rotary pair: "interleaved" puts them side by side,
    "halves" half a vector apart. `rotary_base` is the longest wavelength over 2 pi, about. To read texts `rotary_factor`
    times as long as the `max_positions` that rotary weights were trained for, `rotary_scaling` is "linear", "ntk" or
    "yarn".
    """

    section = "model"

    source_vocab_size: Annotated[int, Field(ge=4)] = 8000
    target_vocab_size: Annotated[int, Field(ge=4)] = 8000
    d_model: Count = 512
    num_heads: Count = 8
    d_ff: Count = 2048
    num_encoder_layers: Count = 6
    num_decoder_layers: Count = 6
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    activation_dropout: Probability = 0.0
    norm: Literal["pre", "post"] = "post"
    activation: Literal["relu", "gelu"] = "relu"
    positions: Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "none"] = "sinusoidal"
    position_layout: Literal["interleaved", "halves"] = "interleaved"
    max_positions: Count = 1024
    rotary_base: Annotated[float, Field(gt=1.0, allow_inf_nan=False)] = 10000.0
    rotary_scaling: Literal["none", "linear", "ntk", "yarn"] = "none"
    rotary_factor: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = 1.0
    tie_embeddings: Literal["none", "decoder", "all"] = "none"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model {self.d_model} does not divide into {self.num_heads} heads; "
                "choose num_heads that divides d_model"
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(
                f"positions = 'rotary' turns pairs of numbers, but d_model {self.d_model} over {self.num_heads} heads "
                f"leaves {self.head_dim} to each, which is odd; choose d_model and num_heads that leave an even number"
            )
        if self.rotary_factor != 1.0 and (self.positions != "rotary" or self.rotary_scaling == "none"):
            raise ValueError(
                f"rotary_factor {self.rotary_factor:g} changes nothing where positions = '{self.positions}' and "
                f"rotary_scaling = '{self.rotary_scaling}'; set positions = 'rotary' and choose rotary_scaling 'linear', "
                "'ntk' or 'yarn', or leave rotary_factor at 1"
            )
        if self.tie_embeddings == "all" and self.source_vocab_size != self.target_vocab_size:
            raise ValueError(
                "tie_embeddings = 'all' needs one vocabulary for both languages, but source_vocab_size is "
                f"{self.source_vocab_size} and target_vocab_size {self.target_vocab_size}; "
                "make them equal, or tie 'decoder' or 'none'"
            )
        return self

    @property
    def head_dim(self) -> int:
        """Width of one head: d_model / num_heads."""
        return self.d_model // self.num_heads

    @classmethod
    def base(cls, **changes: Any) -> Self:
        """The paper's base model (table 3): 37,000 shared byte pairs and, with one vocabulary, all three tied.

        >>> ModelConfig.base().d_ff
        2048
        """
        return cls._paper({}, changes)

    @classmethod
    def big(cls, **changes: Any) -> Self:
        """The paper's big model (table 3)."""
        return cls._paper({"d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3}, changes)

    @classmethod
    def _paper(cls, sizes: Mapping[str, Any], changes: Mapping[str, Any]) -> Self:
        settings = {"source_vocab_size": 37000, "target_vocab_size": 37000, **sizes, **changes}
        shared = settings["source_vocab_size"] == settings["target_vocab_size"]
        return cls(**{"tie_embeddings": "all" if shared else "none", **settings})

    @classmethod
    def small(cls, **changes: Any) -> Self:
        """A model that a laptop trains overnight: 7.6 M parameters with a tied vocabulary of 8,000."""
        sizes: dict[str, Any] = {"d_model": 256, "num_heads": 4, "d_ff": 1024, "norm": "pre"}
        return cls(**{**sizes, "num_encoder_layers": 3, "num_decoder_layers": 3, **changes})

    @classmethod
    def tiny(cls, **changes: Any) -> Self:
        """A model for trying things out: it learns ten sentences in seconds."""
        sizes: dict[str, Any] = {"d_model": 64, "num_heads": 4, "d_ff": 128, "norm": "pre"}
        return cls(**{**sizes, "num_encoder_layers": 2, "num_decoder_layers": 2, **changes})
