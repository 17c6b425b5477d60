"""Faults that the tests must find: one line of the source written wrongly, and the test that turns red."""

from typing import NamedTuple

__all__ = ["FAULTS", "Fault"]


class Fault(NamedTuple):
    """One wrong line: in a file of the package, what stands there, what is put there, and the test that finds it."""

    name: str
    file: str
    right: str
    wrong: str
    test: str


MASKS = [
    Fault(
        "the causal mask is shifted by one",
        "masks/kinds.py",
        "        return k <= q\n",
        "        return k <= q + 1\n",
        "test_masks.py::test_causal_is_drawn",
    ),
    Fault(
        "padding ends one key late",
        "masks/samples.py",
        'past the sample\'s end."""\n        return k < torch',
        'past the sample\'s end."""\n        return k <= torch',
        "test_masks.py::test_padding_is_drawn_for_each_sample",
    ),
    Fault(
        "a window ends one key early",
        "masks/kinds.py",
        "(q - self.before <= k)",
        "(q - self.before < k)",
        "test_masks.py::test_window_is_drawn",
    ),
    Fault(
        "the inverse hides nothing",
        "masks/joins.py",
        "return ~self.part.see(b, h, q, k)",
        "return self.part.see(b, h, q, k)",
        "test_masks.py::test_operators_are_those_of_sets",
    ),
    Fault(
        "rows are counted from zero at every step",
        "masks/algebra.py",
        "torch.arange(first_query, first_query + queries, device=device)",
        "torch.arange(queries, device=device)",
        "test_masks.py::test_a_cached_step_is_a_row_of_the_whole_mask",
    ),
    Fault(
        "a causal mask falls away one step early",
        "masks/kinds.py",
        "first_query >= keys - 1 else",
        "first_query >= keys - 2 else",
        "test_masks.py::test_within_means_the_same_in_its_window",
    ),
    Fault(
        "a drawn expression leaves out its brackets",
        "masks/joins.py",
        "if mask._binds < binds",
        "if mask._binds < 0",
        "test_masks.py::test_the_repr_rebuilds_the_mask",
    ),
    Fault(
        "equality asks for an order",
        "masks/joins.py",
        'set(self.parts) == set(getattr(other, "parts", ()))',
        'self.parts == getattr(other, "parts", ())',
        "test_masks.py::test_equality_is_structural_in_any_order",
    ),
    Fault(
        "a chunk is cut one position early",
        "masks/kinds.py",
        "return q // self.size == k // self.size",
        "return (q + 1) // self.size == (k + 1) // self.size",
        "test_mask_kinds.py::test_each_kind_is_its_formula",
    ),
    Fault(
        "global positions see, and are not seen",
        "masks/kinds.py",
        "return self._holds(q) | self._holds(k)",
        "return self._holds(q) | torch.zeros_like(self._holds(k))",
        "test_mask_kinds.py::test_each_kind_is_its_formula",
    ),
    Fault(
        "each head uses the mask of the next",
        "masks/samples.py",
        "torch.where(h == head,",
        "torch.where(h == (head + 1) % len(self.masks),",
        "test_mask_kinds.py::test_each_head_has_its_own_mask",
    ),
    Fault(
        "two additive masks leave float16",
        "masks/algebra.py",
        "torch.finfo(dtype).min / 4",
        "torch.finfo(dtype).min",
        "test_masks.py::test_two_additive_masks_and_large_scores_stay_finite",
    ),
    Fault(
        "a wider window sees no more",
        "masks/order.py",
        "return a.before <= b.before and a.after <= b.after",
        "return a.before >= b.before and a.after <= b.after",
        "test_mask_order.py::test_no_answer_is_wrong",
    ),
    Fault(
        "nn.MultiheadAttention is told what to see instead of what to hide",
        "masks/conventions/multihead.py",
        "        return ~seen\n",
        "        return seen\n",
        "test_conventions_torch.py::test_multihead_attention_computes_our_formula",
    ),
    Fault(
        "the heads of a 3-D mask change slowest",
        "masks/conventions/multihead.py",
        "return seen.expand(batch, heads, target.queries, target.keys).flatten(0, 1)",
        "return seen.expand(batch, heads, target.queries, target.keys).transpose(0, 1).flatten(0, 1)",
        "test_conventions_torch.py::test_the_mask_of_all_heads_is_batch_major_with_the_head_fastest",
    ),
    Fault(
        "a cached step is exported as one from the top",
        "masks/conventions/sdpa.py",
        "if simple == Causal() and target.first_query == 0:",
        "if simple == Causal():",
        "test_conventions_torch.py::test_sdpa_is_given_no_flag_where_rows_do_not_begin_at_the_top",
    ),
    Fault(
        "a triangle of ones is read as additive",
        "masks/conventions/tensors.py",
        "if bool(((values == 0) | (values == 1)).all()) and bool((values == 1).any()):",
        "if False:",
        "test_conventions_torch.py::test_what_can_mean_two_things_or_does_not_fit_is_not_read",
    ),
    Fault(
        "the decoder's mask forgets the future",
        "masks/seq2seq.py",
        "decoder=Causal() & target",
        "decoder=target",
        "test_model.py::test_the_decoder_sees_all_of_the_past_and_none_of_the_future",
    ),
]

ATTENTION = [
    Fault(
        "the square root is dropped",
        "model/attention.py",
        " / math.sqrt(query.shape[-1])",
        "",
        "test_attention.py::test_every_backend_is_the_paper_s_equation",
    ),
    Fault(
        "the mask means the opposite",
        "model/attention.py",
        "hidden = ~mask.broadcast",
        "hidden = mask.broadcast",
        "test_attention.py::test_every_backend_is_the_paper_s_equation",
    ),
    Fault(
        "blind rows are not zeroed",
        "model/attention.py",
        "scores.softmax(dim=-1).masked_fill(hidden, 0.0)",
        "scores.softmax(dim=-1)",
        "test_attention.py::test_backends_have_equal_values_and_gradients",
    ),
    Fault(
        "the formula ignores where its first query stands",
        "model/attention.py",
        "mask.broadcast(query.shape[2], key.shape[2], first_query, query.device)",
        "mask.broadcast(query.shape[2], key.shape[2], 0, query.device)",
        "test_attention.py::test_every_backend_is_the_paper_s_equation",
    ),
    Fault(
        "the kernel ignores where its first query stands",
        "model/kernels.py",
        "mask.broadcast(queries, keys, first_query, query.device)",
        "mask.broadcast(queries, keys, 0, query.device)",
        "test_attention.py::test_backends_have_equal_values_and_gradients",
    ),
    Fault(
        "the kernel's causal flag is used for later queries too",
        "model/kernels.py",
        " and first_query == 0 and queries == keys",
        "",
        "test_attention.py::test_backends_have_equal_values_and_gradients",
    ),
    Fault(
        "a bias unmasks",
        "model/kernels.py",
        'float("-inf")',
        "0.0",
        "test_attention.py::test_backends_have_equal_values_and_gradients",
    ),
    Fault(
        "heads are cut along the positions",
        "model/attention.py",
        "states.view(batch, length, self.num_heads, d_model // self.num_heads).transpose(1, 2)",
        "states.view(batch, self.num_heads, length, d_model // self.num_heads)",
        "test_attention.py::test_many_heads_are_those_of_torch",
    ),
    Fault(
        "attention weights are dropped in evaluation",
        "model/attention.py",
        "self.dropout if self.training else 0.0",
        "self.dropout",
        "test_attention.py::test_attention_weights_are_dropped_while_training_only",
    ),
]

MODEL = [
    Fault(
        "the cache does not grow",
        "model/decoder.py",
        "own = cache.own.append(own)",
        "own = cache.own",
        "test_model.py::test_a_cached_step_is_a_row_of_training",
    ),
    Fault(
        "a step is told the first position",
        "model/transformer.py",
        "positions(scaled, first)",
        "positions(scaled)",
        "test_model.py::test_a_cached_step_is_a_row_of_training",
    ),
    Fault(
        "a step forgets where it stands",
        "model/decoder.py",
        "first = cache.own.key.shape[2]",
        "first = 0",
        "test_model.py::test_a_cached_step_is_a_row_of_training",
    ),
    Fault(
        "selecting rows leaves the source's as they were",
        "model/cache.py",
        "layer.cross.select(rows)",
        "layer.cross",
        "test_model.py::test_a_selected_cache_is_the_cache_of_the_selected_samples",
    ),
    Fault(
        "the source's padding is seen",
        "model/decoder.py",
        "look(entered, cross, cross_mask, first,",
        "look(entered, cross, None, first,",
        "test_model.py::test_the_decoder_never_sees_the_source_s_padding",
    ),
    Fault(
        "embeddings are not scaled",
        "model/transformer.py",
        "embedding(ids) * math.sqrt(self.config.d_model)",
        "embedding(ids)",
        "test_model.py::test_embeddings_are_scaled_and_told_their_positions",
    ),
    Fault(
        "the sum of embeddings and positions is not dropped from",
        "model/transformer.py",
        "self.dropout(positions(scaled, first))",
        "positions(scaled, first)",
        "test_model.py::test_dropout_acts_on_the_sum_of_embeddings_and_positions",
    ),
    Fault(
        "the final norm is left out",
        "model/decoder.py",
        "states = self.final_norm(states)",
        "pass",
        "test_interop.py::test_from_torch_computes_what_torch_does",
    ),
    Fault(
        "pre-norm is post-norm",
        "model/sublayer.py",
        "return states if self.pre else self.norm(states)",
        "return self.norm(states)",
        "test_model.py::test_norms_stand_before_or_after",
    ),
    Fault(
        "nothing is tied",
        "model/transformer.py",
        'if config.tie_embeddings != "none":',
        "if False:",
        "test_model.py::test_tying_shares_one_parameter",
    ),
    Fault(
        "what is kept is not scaled",
        "model/sublayer.py",
        "states * (65536 / (65536 - dropped))",
        "states",
        "test_model.py::test_dropout_keeps_its_rate_and_scales_exactly",
    ),
    Fault(
        "wavelengths end at 1000",
        "model/positions.py",
        "-math.log(10000.0)",
        "-math.log(1000.0)",
        "test_positions.py::test_sinusoidal_is_the_paper_s_formula",
    ),
    Fault(
        "a table one row past its end",
        "model/positions.py",
        "if past > self.max_positions:",
        "if past > self.max_positions + 1:",
        "test_positions.py::test_generation_stops_at_the_limit_of_learned_positions",
    ),
]

GUESTS = [
    Fault(
        "queries and keys are swapped",
        "interop/torch.py",
        "(mine.query, mine.key, mine.value)",
        "(mine.key, mine.query, mine.value)",
        "test_interop.py::test_from_torch_computes_what_torch_does",
    ),
    Fault(
        "the decoder's norms are in another order",
        "interop/torch.py",
        "norms.insert(1,",
        "norms.insert(2,",
        "test_interop.py::test_from_torch_computes_what_torch_does",
    ),
    Fault(
        "a look ahead by one is lawful",
        "check/causal.py",
        "ahead = found.triu(diagonal=1)",
        "ahead = found.triu(diagonal=2)",
        "test_check.py::test_a_look_ahead_by_one_is_found",
    ),
    Fault(
        "padding is never changed",
        "check/padded.py",
        "_refilled(given, numbers)",
        "given",
        "test_check.py::test_padding_that_is_seen_is_found",
    ),
    Fault(
        "what is no number is equal",
        "check/equal.py",
        'nan_to_num(nan=float("inf"), posinf=float("inf"))',
        "nan_to_num(nan=0.0)",
        "test_check.py::test_what_is_no_number_on_both_sides_is_no_parity",
    ),
    Fault(
        "the module itself is checked, not a copy",
        "check/copies.py",
        "copied = copy.deepcopy(module)",
        "copied = module",
        "test_check.py::test_the_module_is_left_as_it_was",
    ),
]

FAULTS = [*MASKS, *ATTENTION, *MODEL, *GUESTS]
