"""Settings: right at the first reading, helpful about slips, and the same after a journey through a file."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid import config
from pellucid.config import DataConfig, DecodingConfig, ModelConfig, RunConfig, Settings, TrainingConfig
from pellucid.errors import ConfigError

SECTIONS: list[type[Settings]] = [ModelConfig, DataConfig, TrainingConfig, DecodingConfig]
NAN, INFINITE = float("nan"), float("inf")


def ask(section: type[Settings], **values: Any) -> Settings:
    """Settings with any names and values, as a user may write them."""
    return section(**values)


# --- slips ------------------------------------------------------------------------------------------------

# Each value is refused, with its setting, the value given, and what was needed.
REFUSED: list[tuple[type[Settings], str, Any, str]] = [
    (ModelConfig, "source_vocab_size", 3, "greater than or equal to 4"),
    (ModelConfig, "target_vocab_size", 3, "greater than or equal to 4"),
    (ModelConfig, "d_model", 0, "greater than or equal to 1"),
    (ModelConfig, "d_model", "wide", "a valid integer"),
    (ModelConfig, "num_encoder_layers", 0, "greater than or equal to 1"),
    (ModelConfig, "dropout", 1.0, "less than 1"),
    (ModelConfig, "dropout", -0.1, "greater than or equal to 0"),
    (ModelConfig, "attention_dropout", NAN, "less than 1"),
    (ModelConfig, "norm", "middle", "'pre' or 'post'"),
    (ModelConfig, "activation", "swish", "'relu' or 'gelu'"),
    (ModelConfig, "positions", "sinus", "'sinusoidal'"),
    (ModelConfig, "positions", "relative", "'sinusoidal', 'learned', 'rotary', 'alibi', 't5' or 'none'"),
    (ModelConfig, "rotary_base", 1.0, "greater than 1"),
    (ModelConfig, "rotary_base", INFINITE, "a finite number"),
    (ModelConfig, "rotary_scaling", "dynamic", "'none', 'linear', 'ntk' or 'yarn'"),
    (ModelConfig, "rotary_factor", 0.5, "greater than or equal to 1"),
    (ModelConfig, "tie_embeddings", "both", "'none', 'decoder' or 'all'"),
    (DataConfig, "tokenizer", "words", "'unigram' or 'bpe'"),
    (DataConfig, "max_length", 1, "greater than or equal to 2"),
    (DataConfig, "over_length", "keep", "'drop' or 'truncate'"),
    (DataConfig, "batch_tokens", 2.5, "a valid integer"),
    (TrainingConfig, "steps", 0, "greater than or equal to 1"),
    (TrainingConfig, "minutes", 0, "greater than 0"),
    (TrainingConfig, "learning_rate", INFINITE, "a finite number"),
    (TrainingConfig, "weight_decay", -1e-9, "greater than or equal to 0"),
    (TrainingConfig, "label_smoothing", 1, "less than 1"),
    (TrainingConfig, "precision", "float16", "'bfloat16'"),
    (TrainingConfig, "seed", -1, "greater than or equal to 0"),
    (TrainingConfig, "keep", 0, "greater than or equal to 1"),
    (DecodingConfig, "beam", 0, "greater than or equal to 1"),
    (DecodingConfig, "length_penalty", NAN, "a finite number"),
    (DecodingConfig, "length_ratio", 0, "greater than 0"),
]

# Each call is refused, in these words.
SLIPS: list[tuple[Callable[[], object], str]] = [
    (lambda: ask(ModelConfig, d_modle=512), "model: unknown setting 'd_modle'; did you mean 'd_model'?"),
    (lambda: ask(DecodingConfig, bream=4), "decoding: unknown setting 'bream'; did you mean 'beam'?"),
    (lambda: ask(RunConfig, modle={}), "settings: unknown setting 'modle'; did you mean 'model'?"),
    (lambda: ask(RunConfig, model={"d_modle": 512}), "model: unknown setting 'd_modle'; did you mean 'd_model'?"),
    (lambda: ModelConfig.tiny(nrom="pre"), "model: unknown setting 'nrom'; did you mean 'norm'?"),
    (lambda: ModelConfig().replace(dorpout=0.2), "model: unknown setting 'dorpout'; did you mean 'dropout'?"),
    (
        lambda: ModelConfig(d_model=10, num_heads=3),
        "model: d_model 10 does not divide into 3 heads; choose num_heads that divides d_model",
    ),
    (
        lambda: ModelConfig(d_model=66, num_heads=6, positions="rotary"),
        "model: positions = 'rotary' turns pairs of numbers, but d_model 66 over 6 heads leaves 11 to each, which is odd; "
        "choose d_model and num_heads that leave an even number",
    ),
    (
        lambda: ModelConfig(positions="rotary", rotary_factor=4),
        "model: rotary_factor 4 changes nothing where positions = 'rotary' and rotary_scaling = 'none'; set positions = "
        "'rotary' and choose rotary_scaling 'linear', 'ntk' or 'yarn', or leave rotary_factor at 1",
    ),
    (
        lambda: ModelConfig(positions="alibi", rotary_factor=1.5, rotary_scaling="ntk"),
        "model: rotary_factor 1.5 changes nothing where positions = 'alibi' and rotary_scaling = 'ntk'; set positions = "
        "'rotary' and choose rotary_scaling 'linear', 'ntk' or 'yarn', or leave rotary_factor at 1",
    ),
    (
        lambda: ModelConfig(tie_embeddings="all", source_vocab_size=11, target_vocab_size=13),
        "model: tie_embeddings = 'all' needs one vocabulary for both languages, but source_vocab_size is 11 and "
        "target_vocab_size 13; make them equal, or tie 'decoder' or 'none'",
    ),
    (
        lambda: TrainingConfig(validation_lines=0, best="bleu"),
        "training: best = 'bleu' needs translations, but validation_lines is 0; raise it, or choose best = 'loss'",
    ),
    (
        lambda: RunConfig(model=ModelConfig(source_vocab_size=11, target_vocab_size=13)),
        "settings: data.shared_vocabulary is true, but model.source_vocab_size is 11 and model.target_vocab_size 13; "
        "make them equal, or set data.shared_vocabulary = false",
    ),
    (
        lambda: RunConfig(model=ModelConfig(tie_embeddings="all"), data=DataConfig(shared_vocabulary=False)),
        "settings: model.tie_embeddings = 'all' needs data.shared_vocabulary = true; share the vocabulary, or tie "
        "'decoder' or 'none'",
    ),
    (
        lambda: RunConfig(model=ModelConfig(positions="learned", max_positions=99), data=DataConfig(max_length=100)),
        "settings: data.max_length 100 is past the 99 positions that the model learns; raise model.max_positions, or "
        "lower data.max_length",
    ),
    (lambda: RunConfig.from_toml("[trainin]"), "settings: unknown section 'trainin'; did you mean 'training'?"),
    (
        lambda: RunConfig.from_toml("training = 3"),
        "settings: 'training' was given 3, but it is a section; write [training]",
    ),
    (
        lambda: RunConfig.from_toml("training = 3", ["training.steps=4"]),
        "settings: 'training' was given 3, but it is a section; write [training]",
    ),
    (
        lambda: RunConfig.from_toml("", ["steps=5"]),
        "--set was given 'steps=5', but it takes section.name=value, as in training.steps=5000",
    ),
    (
        lambda: RunConfig.from_toml("", ["training.steps"]),
        "--set was given 'training.steps', but it takes section.name=value, as in training.steps=5000",
    ),
    (
        lambda: RunConfig.from_toml("", ["training.=5"]),
        "--set was given 'training.=5', but it takes section.name=value, as in training.steps=5000",
    ),
    (
        lambda: RunConfig.from_toml("", ["training.stpes=5"]),
        "training: unknown setting 'stpes'; did you mean 'steps'?",
    ),
    (
        lambda: RunConfig.from_file(Path("nowhere.toml")),
        "the settings nowhere.toml cannot be read (No such file or directory); check the path",
    ),
]


def is_one_sentence(message: str) -> bool:
    """Whether a message is one line and one sentence, without its full stop."""
    return not re.search(r"\n|\.$|[.!?]\s+[A-Z]", message)


@pytest.mark.parametrize(("section", "name", "value", "needed"), REFUSED)
def test_a_value_out_of_range_is_named_with_what_was_needed(
    section: type[Settings], name: str, value: Any, needed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        section(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"{section.section}: '{name}' was given {value!r}, but it should be ")
    assert needed in message
    assert is_one_sentence(message)


@pytest.mark.parametrize(("call", "message"), SLIPS, ids=[message[:40] for _, message in SLIPS])
def test_a_slip_is_answered_in_these_words(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert str(caught.value) == message
    assert is_one_sentence(message)


def test_an_unknown_setting_like_no_other_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"^decoding: unknown setting 'xyzzy'; known are beam, length_penalty, "):
        ask(DecodingConfig, xyzzy=1)


def test_text_that_is_not_toml_says_where() -> None:
    with pytest.raises(ConfigError, match=r"^the settings are not TOML: .*line 2, .*; see `pellucid info`") as caught:
        RunConfig.from_toml("[training]\nsteps 5\n")
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize(("section", "name"), [(one, name) for one in SECTIONS for name in one.model_fields])
def test_a_letter_too_few_brings_the_right_name(section: type[Settings], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        section(**{name[:-1]: 1})
    assert str(caught.value) == f"{section.section}: unknown setting '{name[:-1]}'; did you mean '{name}'?"


# --- values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", [*SECTIONS, RunConfig])
def test_settings_are_values(section: type[Settings]) -> None:
    one, name = section(), next(iter(section.model_fields))
    assert one == section()
    assert hash(one) == hash(section())
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        setattr(one, name, getattr(one, name))
    with pytest.raises(TypeError):
        section(1)  # type: ignore[call-arg]


def test_replace_leaves_the_old_settings_and_checks_the_new() -> None:
    one = ModelConfig.tiny()
    other = one.replace(d_model=32, dropout=0.5)
    assert (other.d_model, other.dropout, other.num_heads) == (32, 0.5, one.num_heads)
    assert one == ModelConfig.tiny() != other
    with pytest.raises(ConfigError, match="does not divide into 4 heads"):
        one.replace(d_model=33)


def test_replace_keeps_the_sections_of_a_run() -> None:
    one = RunConfig.from_toml("", ["training.steps=7"]).replace(decoding=DecodingConfig(beam=2))
    assert isinstance(one.training, TrainingConfig)
    assert (one.training.steps, one.decoding.beam) == (7, 2)


def test_the_four_ids_are_those_of_every_vocabulary() -> None:
    assert (config.PAD_ID, config.UNKNOWN_ID, config.BEGIN_ID, config.END_ID) == (0, 1, 2, 3)


def test_settings_are_read_without_torch() -> None:
    import_alone = "import importlib.util, sys; sys.modules['pellucid'] = type(sys)('pellucid'); " + (
        f"sys.modules['pellucid'].__path__ = {[str(Path(config.__file__).parent.parent)]}; import pellucid.config; "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", import_alone], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# --- the paper's sizes, and ours --------------------------------------------------------------------------

# Table 3 of Vaswani et al. 2017: N, d_model, d_ff, h, d_k, P_drop.
TABLE_3 = {"base": (6, 512, 2048, 8, 64, 0.1), "big": (6, 1024, 4096, 16, 64, 0.3)}


@pytest.mark.parametrize("name", TABLE_3)
def test_the_paper_s_models_have_the_numbers_of_its_table(name: str) -> None:
    one = getattr(ModelConfig, name)()
    assert TABLE_3[name] == (one.num_encoder_layers, one.d_model, one.d_ff, one.num_heads, one.head_dim, one.dropout)
    assert one.num_decoder_layers == one.num_encoder_layers
    assert (one.norm, one.activation, one.positions, one.position_layout) == (
        "post",
        "relu",
        "sinusoidal",
        "interleaved",
    )
    assert (one.source_vocab_size, one.target_vocab_size, one.tie_embeddings) == (37_000, 37_000, "all")


@pytest.mark.parametrize("name", TABLE_3)
def test_the_paper_s_models_tie_only_what_can_be_tied(name: str) -> None:
    preset = getattr(ModelConfig, name)
    assert preset(source_vocab_size=11).tie_embeddings == "none"
    assert preset(source_vocab_size=11, target_vocab_size=11).tie_embeddings == "all"
    assert preset(tie_embeddings="decoder").tie_embeddings == "decoder"


@pytest.mark.parametrize("name", ["base", "big", "small", "tiny"])
def test_a_preset_gives_way_to_what_is_asked(name: str) -> None:
    preset = getattr(ModelConfig, name)
    changes = {"d_model": 36, "num_heads": 3, "d_ff": 7, "num_encoder_layers": 5, "dropout": 0.25, "norm": "post"}
    asked = preset(**changes)
    assert {setting: getattr(asked, setting) for setting in changes} == changes
    assert asked.num_decoder_layers == preset().num_decoder_layers


def test_the_presets_grow() -> None:
    tiny, small, base, big = (getattr(ModelConfig, name)() for name in ("tiny", "small", "base", "big"))
    assert tiny.d_model < small.d_model < base.d_model < big.d_model
    assert tiny.norm == small.norm == "pre"


# --- files and overrides ----------------------------------------------------------------------------------


def positive(most: float = 1e6) -> st.SearchStrategy[float]:
    """Numbers above zero, however small."""
    return st.floats(min_value=0, max_value=most, exclude_min=True)


def choice(section: type[Settings], name: str) -> st.SearchStrategy[Any]:
    """Any of the words that a setting takes."""
    return st.sampled_from(section.model_fields[name].annotation.__args__)  # type: ignore[union-attr]


COUNTS = st.integers(min_value=1, max_value=10**4)
SHARES = st.floats(min_value=0, max_value=1, exclude_max=True)


@st.composite
def runs(draw: st.DrawFn) -> RunConfig:
    """Any settings that fit together."""
    heads, head_dim, vocabulary = draw(COUNTS), draw(COUNTS), draw(st.integers(min_value=4))
    data = DataConfig(
        tokenizer=draw(choice(DataConfig, "tokenizer")),
        shared_vocabulary=draw(st.booleans()),
        normalization=draw(choice(DataConfig, "normalization")),
        max_length=draw(st.integers(min_value=2, max_value=1024)),
        over_length=draw(choice(DataConfig, "over_length")),
        held_out=draw(COUNTS),
    )
    tying = draw(choice(ModelConfig, "tie_embeddings"))
    positions, scaling = draw(choice(ModelConfig, "positions")), draw(choice(ModelConfig, "rotary_scaling"))
    model = ModelConfig(
        source_vocab_size=vocabulary,
        target_vocab_size=vocabulary if data.shared_vocabulary else draw(st.integers(min_value=4)),
        d_model=heads * head_dim * (2 if positions == "rotary" else 1),
        num_heads=heads,
        dropout=draw(SHARES),
        norm=draw(choice(ModelConfig, "norm")),
        positions=positions,
        position_layout=draw(choice(ModelConfig, "position_layout")),
        rotary_base=draw(st.floats(min_value=1, max_value=1e9, exclude_min=True)),
        rotary_scaling=scaling,
        rotary_factor=draw(st.floats(min_value=1, max_value=1e3))
        if (positions, scaling != "none") == ("rotary", True)
        else 1,
        tie_embeddings="none" if tying == "all" and not data.shared_vocabulary else tying,
    )
    training = TrainingConfig(
        minutes=draw(st.none() | positive()),
        learning_rate=draw(positive()),
        betas=(draw(SHARES), draw(SHARES)),
        epsilon=draw(positive()),
        clip_norm=draw(st.just(0.0) | positive()),
        precision=draw(choice(TrainingConfig, "precision")),
        seed=draw(st.integers(min_value=0, max_value=2**63 - 1)),
        best=draw(choice(TrainingConfig, "best")),
    )
    penalty = draw(st.floats(allow_nan=False, allow_infinity=False))
    return RunConfig(model=model, data=data, training=training, decoding=DecodingConfig(length_penalty=penalty))


@given(runs())
def test_settings_survive_a_journey_through_toml(run: RunConfig) -> None:
    assert RunConfig.from_toml(run.to_toml()) == run


def test_every_setting_is_written() -> None:
    run = RunConfig(training=TrainingConfig(minutes=3.5), decoding=DecodingConfig(max_length=90, max_source_length=70))
    written = tomllib.loads(run.to_toml())
    assert {name: set(section) for name, section in written.items()} == {
        section.section: set(section.model_fields) for section in SECTIONS
    }


def test_no_settings_are_a_small_model_tied_as_far_as_its_vocabularies_allow() -> None:
    assert RunConfig.from_toml("").model == ModelConfig.small(tie_embeddings="all")
    assert RunConfig.from_toml("[data]\nshared_vocabulary = false").model == ModelConfig.small(tie_embeddings="decoder")
    assert RunConfig.from_toml("[model]\ntie_embeddings = 'none'").model == ModelConfig.small()


@pytest.mark.parametrize(
    ("override", "section", "name", "value"),
    [
        ("training.steps=5000", "training", "steps", 5000),
        (" training.steps = 5000 ", "training", "steps", 5000),
        ("model.norm=post", "model", "norm", "post"),
        ("model.norm='post'", "model", "norm", "post"),
        ("training.betas=[0.8, 0.9]", "training", "betas", (0.8, 0.9)),
        ("training.minutes=1.5", "training", "minutes", 1.5),
        ("data.shared_vocabulary=false", "data", "shared_vocabulary", False),
    ],
)
def test_an_override_is_toml_or_else_a_word(override: str, section: str, name: str, value: object) -> None:
    assert getattr(getattr(RunConfig.from_toml("", [override]), section), name) == value


def test_a_later_override_wins_over_an_earlier_one_and_over_the_file() -> None:
    text = "[training]\nsteps = 3\nwarmup = 4"
    run = RunConfig.from_toml(text, ["training.steps=5", "training.steps=6", "decoding.beam=7"])
    assert (run.training.steps, run.training.warmup, run.decoding.beam) == (6, 4, 7)


def test_a_file_is_read_and_named_where_it_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    assert RunConfig.from_file(None, ["training.steps=5"]) == RunConfig.from_toml("", ["training.steps=5"])
    path.write_text("[training]\nsteps = 300\n", encoding="utf-8")
    assert RunConfig.from_file(path, ["decoding.beam=2"]) == RunConfig.from_toml(
        "", ["training.steps=300", "decoding.beam=2"]
    )
    path.write_text("[training]\nstpes = 300\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run.toml: training: unknown setting 'stpes'; did you mean 'steps'"):
        RunConfig.from_file(path)
    path.write_bytes(b"[training]\n# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"run.toml are not UTF-8 text; save the file as UTF-8"):
        RunConfig.from_file(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        RunConfig.from_file(tmp_path)
