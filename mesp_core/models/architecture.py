"""What a model *is*, as data: sizes, norms, biases, RoPE, head. No maths and no MLX here."""

from dataclasses import dataclass

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
PROJECTIONS = ATTENTION + MLP
EMBEDDING = "model.embed_tokens"


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding (Su et al., arXiv 2104.09864).

    `theta` is the base; `position_scale` multiplies positions (linear scaling: 1/factor). With `llama3` set, the
    frequencies are rescaled by wavelength as Llama 3.1 does: (factor, low_freq_factor, high_freq_factor,
    original_max_position_embeddings). `traditional` rotates neighbouring pairs instead of the two halves of a head.
    """

    theta: float
    position_scale: float = 1.0
    llama3: tuple[float, float, float, float] | None = None
    traditional: bool = False


@dataclass(frozen=True)
class Architecture:
    """A decoder-only transformer of pre-norm blocks with grouped-query attention and a gated MLP.

    `biases` names the projections that carry one; `attention_norm` and `mlp_norm` are the names of the norms before the two
    halves of a block. Sizes are the field's own (config.json's) names.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope: RopeSpec
    biases: frozenset[str]
    tie_word_embeddings: bool
    max_position_embeddings: int | None  # None: the file does not say
    hidden_act: str = "silu"
    attention_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"

    def projection_shape(self, name: str) -> tuple[int, int]:
        """(out_features, in_features) of one of a block's projections."""
        q, kv = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        return {
            "q_proj": (q, self.hidden_size),
            "k_proj": (kv, self.hidden_size),
            "v_proj": (kv, self.hidden_size),
            "o_proj": (self.hidden_size, q),
            "gate_proj": (self.intermediate_size, self.hidden_size),
            "up_proj": (self.intermediate_size, self.hidden_size),
            "down_proj": (self.hidden_size, self.intermediate_size),
        }[name]

    def linears(self) -> dict[str, tuple[int, int, bool]]:
        """Every matrix of the model outside the norms: module path -> (out_features, in_features, has a bias)."""
        table = {EMBEDDING: (self.vocab_size, self.hidden_size, False)}
        for layer in range(self.num_hidden_layers):
            for name in PROJECTIONS:
                table[projection_path(layer, name)] = (*self.projection_shape(name), name in self.biases)
        if not self.tie_word_embeddings:
            table["lm_head"] = (self.vocab_size, self.hidden_size, False)
        return table

    def block_norms(self) -> dict[str, int]:
        """A block's RMSNorms: path within the block -> the size of its weight."""
        return {self.attention_norm: self.hidden_size, self.mlp_norm: self.hidden_size}

    def norms(self) -> dict[str, int]:
        """All RMSNorms: module path -> the size of its weight."""
        blocks = range(self.num_hidden_layers)
        table = {norm_path(layer, name): size for layer in blocks for name, size in self.block_norms().items()}
        return table | {"model.norm": self.hidden_size}


def projection_path(layer: int, name: str) -> str:
    """`model.layers.3.mlp.up_proj`: the module path, also an adapter's name."""
    return f"model.layers.{layer}.{'self_attn' if name in ATTENTION else 'mlp'}.{name}"


def norm_path(layer: int, name: str) -> str:
    """`model.layers.3.input_layernorm`."""
    return f"model.layers.{layer}.{name}"
