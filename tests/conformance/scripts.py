"""Which of TileLang's example scripts are run, and how: paths, arguments and sizes. None of their code is here.

On a GPU a script runs as it is. Without one, `arguments` and `sizes` make it small enough for the interpreter:
arguments go to scripts that parse some; sizes are (pattern, text) pairs, regular expressions replaced in its text.
"""

from __future__ import annotations

from dataclasses import dataclass

LIST_A, LIST_B = "A", "B"  # core passes only; one further pass each


@dataclass(frozen=True)
class Script:
    """One example script.

    `needs` are packages that it compares with, such as "fla" or "triton<3.7". `entry` replaces its main part, on a GPU
    too: Python text run in its namespace after it is imported. `prints_only` says that it compares nothing.
    """

    path: str
    list: str
    arguments: str = ""
    sizes: tuple[tuple[str, str], ...] = ()
    entry: str = ""
    needs: tuple[str, ...] = ()
    prints_only: bool = False

    @property
    def name(self) -> str:
        return self.path.removesuffix(".py")


def _a(path: str, arguments: str = "", *sizes: tuple[str, str], **options: object) -> Script:
    return Script(path + ".py", LIST_A, arguments, sizes, **options)  # type: ignore[arg-type]


def _b(path: str, arguments: str = "", *sizes: tuple[str, str], **options: object) -> Script:
    return Script(path + ".py", LIST_B, arguments, sizes, **options)  # type: ignore[arg-type]


_SINK = "attention_sink/example_"
_VARLEN = "--batch 2 --heads 4 --groups 2 --q_seqlen 160 --k_seqlen 160 --dim 64"
_GEMM = "--m 256 --n 256 --k 128"
_KDA = ((r"\bS=8192|\bS=1024 \* 8", "S=128"), (r"\bH=64", "H=2"), (r"\bS=32768", "S=128"), (r"\bH=32\b", "H=2"))
_DECODE = "--batch 2 --heads 8 --heads_kv 2 --max_cache_seqlen 512 --dim 64 --dim_v 64"
_MLA = "--batch 1 --heads 64 --kv_ctx 8192 --dim 128"  # the tolerance fits this length: results shrink with it
_DSA = ((r"S=2048", "S=256"), (r"1023", "128"))
_DSA_ENTRY = "from checks import ratio as get_err_ratio\ntest_kernel()"
_FLA = ("fla",)
# These were written for an fla whose functions took other arguments, and decays to the base e.
_GDN_CHECK = "from checks import check_delta_state, check_kkt\n"
# The references are Triton kernels beside the scripts, which use block pointers; the scripts print differences.
_KDA_ENTRY = "from checks import bench as do_bench, close as compare_tensors, poison\npoison()\nmain()"
# As it is, the state grows tenfold with each chunk and leaves bfloat16's range after some 40 of its 128 chunks; where
# and when, rounding decides. Smaller weights keep it finite.
_SMALL_WEIGHTS = """
made = prepare_input


def prepare_input(*given, **named):
    q, k, w, *rest = made(*given, **named)
    return q, k, w * 0.05, *rest


"""


# As they are, they print the kernel, and time it.
_SPARSE_ENTRY = """import torch
from checks import close
torch.manual_seed(0)
small = "CPU" in torch.cuda.get_device_name()
S, SKV, H, K = (2, 256, 64, 128) if small else (512, 4096, 128, 1024)
q = torch.randn(1, S, H, 576, dtype=torch.bfloat16, device="cuda") / 10
kv = torch.randn(1, SKV, 1, 576, dtype=torch.bfloat16, device="cuda") / 10
indices = torch.stack([torch.randperm(K + 1 + t, device="cuda")[:K] for t in range(S)])[None, :, None].int()
out, lse = sparse_mla_fwd_interface(q, kv, indices, K + 2, 1)
close("out", out, ref_sparse_mla_fwd_interface(q, kv, indices, K + 2, 1))
"""


def _kda(name: str, list: str = LIST_A, before: str = "") -> Script:
    return Script(f"kda/{name}.py", list, "", _KDA, before + _KDA_ENTRY, ("triton<3.7",))


SCRIPTS = (
    _a("quickstart", "", (r"= 1024", "= 256")),
    # Matrix products
    _a("gemm/example_gemm", "", (r"\b1024\b", "256")),
    _a("gemm/example_gemm_advanced_autotune", _GEMM),
    _a("gemm/example_gemm_autotune", _GEMM),
    _a("gemm/example_gemm_autotune_early_stop", "", (r"= 4096, 4096, 4096", "= 128, 128, 64")),
    _a("gemm/example_gemm_autotune_pass_configs", "--m 128 --n 128 --k 64"),
    _a("gemm_tcgen05/gemm_mma"),
    _a("gemm_fp8/example_tilelang_gemm_fp8", "", (r"1024, 1024, 1024", "256, 256, 128")),
    _a("gemm_fp8/example_tilelang_gemm_fp8_2xAcc", "", (r"1024, 1024, 8192", "256, 256, 512")),
    _a("deepseek_deepgemm/example_deepgemm_fp8_2xAcc", "", (r"1024, 1024, 8192", "256, 256, 512")),
    _a("gemm_splitk/example_tilelang_gemm_splitk", "", (r"= 1024", "= 256")),
    _a("gemm_splitk/example_tilelang_gemm_splitk_vectorize_atomicadd", "", (r"= 1024", "= 256")),
    _a("dynamic_shape/example_dynamic", "", (r"16384", "256")),
    _a("blocksparse_gemm/example_blocksparse_gemm", "--m 256 --n 256 --k 256"),
    _a("grouped_gemm/example_grouped_gemm_fwd", "--K 256 --M 256"),
    # Elementwise, norms, casts
    _a("elementwise/example_elementwise_add", "--m 200 --n 300"),
    _a("norm/rms_norm", "", (r"= 8192, 8192", "= 16, 1024")),
    _a("online_softmax/online_softmax", "", (r"= ?8192", "=512")),
    _a("topk/example_topk"),
    _a("cast/example_per_token_cast_to_fp8", "", (r"8192", "256")),
    _a("cast/example_group_per_split_token_cast_to_fp8", "", (r"8192", "256"), (r"2048, 6144", "64, 192")),
    _a(
        "deepseek_mhc/example_mhc_bwd",
        "",
        (r"65536", "64"),
        (r"repeat = 512", "repeat = 1"),
        (r"randn\(8192, 8192", "randn(64, 64"),
    ),
    # Attention
    _a("flash_attention/example_mha_fwd_bhsd"),
    _a("flash_attention/example_mha_fwd_bshd", "--batch 1 --heads 2 --seq_len 256 --dim 64"),
    _a("flash_attention/example_gqa_fwd_bshd", "--heads 4 --groups 2 --seq_len 256 --dim 64"),
    _a("flash_attention/example_mha_bwd_bhsd", "--batch 1 --h 2 --n_ctx 256"),
    _a("flash_attention/example_mha_bwd_bshd", "--batch 1 --h 2 --n_ctx 256"),
    _a("flash_attention/example_gqa_bwd", "--batch 1 --h 4 --groups 2 --n_ctx 256"),
    _a("flash_attention/example_gqa_fwd_varlen", _VARLEN, needs=("flash_attn",)),
    _a("flash_attention/example_mha_fwd_varlen", "--batch 2 --heads 2 --seq_len 160 --dim 64", needs=("flash_attn",)),
    _a(_SINK + "mha_sink_fwd_bhsd", "--batch 1 --heads 2 --seq_q 256 --seq_kv 256 --dim 64"),
    # They keep a number for each row of a tile in a fragment of one for each head.
    _a(_SINK + "mha_sink_bwd_bhsd", "--h 16 --n_ctx 128 --d_head 64", (r"block_M=64", "block_M=16")),
    _a(_SINK + "gqa_sink_bwd_bhsd", "--h 16 --groups 2 --n_ctx 128 --d_head 64", (r"block_M=64", "block_M=16")),
    _a(_SINK + "gqa_sink_fwd_varlen", _VARLEN),
    _a(_SINK + "gqa_sink_bwd_varlen", _VARLEN),
    _a("block_causal_attention/block_causal_attention", "", (r"\(2, 256, 2, 64,", "(1, 128, 1, 64,")),
    _a(
        "block_causal_attention/block_causal_attention_varlen",
        "",
        (r"\[128, 256, 384\]", "[128, 256]"),
        (r"\[512, 1024\]", "[256, 512]"),
        (r"heads=2", "heads=1"),
    ),
    _a("deepseek_nsa/example_tilelang_nsa_fwd"),
    _a("deepseek_nsa/example_tilelang_nsa_decode"),
    _a("deepseek_nsa/example_tilelang_nsa_fwd_varlen", needs=_FLA),
    _a("deepseek_nsa/example_tilelang_nsa_bwd", needs=_FLA),
    _a(
        "deepseek_nsa/benchmark/benchmark_nsa_fwd",
        "--batch 1 --seq_len 64 --iterations 1 --warmup 1 --selected_blocks 2 --dim 32",
        needs=_FLA,
    ),
    _a(
        "deepseek_mla/experimental/example_mla_decode_kv_fp8",
        needs=("einops",),
        entry="from checks import check_mla_fp8\ncheck_mla_fp8(flashattn, ref_program)",
    ),
    # Linear attention
    _a(
        "linear_attention/example_retention_fwd",
        entry="from checks import check_retention\ncheck_retention(chunk_retention_fwd_kernel, postprocess)",
    ),
    _a("linear_attention/example_linear_attn_fwd", "--B 1 --S 128 --H 2 --D 64", needs=_FLA),
    _a("linear_attention/example_linear_attn_bwd", "--B 1 --S 128 --H 2 --D 64", needs=_FLA),
    _a("gdn/example_chunk_delta_h", entry=f"{_GDN_CHECK}check_delta_state(tilelang_chunk_gated_delta_rule_fwd_h)"),
    _a("gdn/example_chunk_o", "", *_KDA, needs=_FLA),
    _a("gdn/example_chunk_scaled_dot_kkt", entry=f"{_GDN_CHECK}check_kkt(tilelang_chunk_scaled_dot_kkt_fwd)"),
    _a("gdn/example_cumsum", "", *_KDA, needs=_FLA),
    _a("gdn/example_wy_fast", "", *_KDA, needs=_FLA),
    _a("gdn/example_wy_fast_bwd_split", "", *_KDA, needs=_FLA),
    _kda("chunk_o"),
    _kda("chunk_delta_h_fwd"),
    _kda("chunk_delta_bwd", before=_SMALL_WEIGHTS),
    _kda("chunk_inter_solve_fused"),
    _kda("chunk_bwd_dqkwg"),
    _kda("chunk_bwd_dv"),
    _kda("chunk_bwd_gla_dA"),
    _kda("wy_fast"),
    _kda("wy_fast_bwd"),
    # List B
    _b(
        "blocksparse_attention/example_tilelang_block_sparse_attn",
        "",
        (r"= 1, 1, 256, 64", "= 1, 1, 192, 64"),
    ),
    _b(
        "blocksparse_attention/example_tilelang_sparse_gqa_decode_paged",
        _DECODE + " --num_pages 16",
        needs=("flash_attn",),
    ),
    _b("blocksparse_attention/example_tilelang_sparse_gqa_decode_varlen_indice", _DECODE, needs=("flash_attn",)),
    _b("blocksparse_attention/example_tilelang_sparse_gqa_decode_varlen_mask", _DECODE, needs=("flash_attn",)),
    _b("convolution/example_convolution", "--n 2 --c 32 --h 16 --w 16 --f 64"),
    _b("convolution/example_convolution_autotune", "--n 2 --c 32 --h 16 --w 16 --f 64"),
    _b("deepseek_mhc/example_mhc_post", "", (r"n=4096, h=2560", "n=16, h=640")),
    _b("deepseek_mla/amd/benchmark_mla_decode_amd_tilelang", _MLA),
    _b("deepseek_mla/example_mla_decode", _MLA),
    _b("deepseek_mla/example_mla_decode_paged", "--batch 2 --h_q 64 --cache_seqlen 512 --d 192 --dv 128"),
    _b(
        "deepseek_v32/inference/kernel",
        entry="from checks import check_inference\ncheck_inference(act_quant, fp8_gemm, fp8_index)",
    ),
    _b("deepseek_v4/sparse_attn_fwd_sm90", "--h 64 --n_ctx 8 --n_kv 128 --d_head 128 --topk 64"),
    _b("dequantize_gemm/example_dequant_gemm_fp4_hopper"),
    _b("dequantize_gemm/example_dequant_gemm_w4a8", "--m 128 --n 128 --k 128"),
    _b(
        "dsa_hisa/block_sparse_mqa_fp8",
        "",
        (r"\(1024, 64,", "(64, 16,"),
        (r"\(4096, 64,", "(64, 16,"),
        (r"\(8192, 64,", "(64, 16,"),
    ),
    _b(
        "dsa_hisa/fp8_block_mean_pooling",
        "",
        (r"\(16384,", "(512,"),
        (r"\(65536,", "(1024,"),
        (r"\(131072,", "(2048,"),
    ),
    _b("dsa_hisa/pool_mqa_fp8", "", (r"\(\d+, 64, 128, 128, 256,", "(512, 16, 128, 16, 32,")),
    _b(
        "dsa_sparse_finetune/indexer_bwd",
        "",
        (r"S=2048", "S=128"),
        (r"1023", "64"),
        needs=("einops",),
        prints_only=True,
    ),  # adds into T.empty
    _b("dsa_sparse_finetune/sparse_mla_fwd", "", (r"S=4096", "S=256"), (r"H=128,", "H=64,"), (r"topk=1024", "topk=64")),
    _b("dsa_sparse_finetune/sparse_mla_topk_reducesum", "", *_DSA, entry=_DSA_ENTRY, needs=("einops",)),
    _b("flash_attention/example_gqa_bwd_tma_reduce", "--batch 1 --h 4 --groups 2 --n_ctx 256"),
    _b(
        "flash_attention/example_gqa_bwd_tma_reduce_varlen", "--batch 2 --h 4 --groups 2 --n_ctx 160", needs=("einops",)
    ),
    _b("flash_decoding/example_gqa_decode", "--heads 16 --groups 2 --kv_seqlen 2048 --dim 64", needs=("einops",)),
    _b(
        "flash_decoding/example_mha_inference",
        "",
        (r"H=32, Q_CTX=128, KV_CTX=8192, D_HEAD=128", "H=2, Q_CTX=128, KV_CTX=1024, D_HEAD=64"),
    ),
    _b(
        "fusedmoe/example_fusedmoe_tilelang",
        "",
        (r"d_hidden=7168, d_expert=2048", "d_hidden=256, d_expert=128"),
        (r"seq_len=8192", "seq_len=64"),
    ),
    _b("gdn/example_chunk_delta_bwd", "", *_KDA, needs=_FLA),
    _b("gemm/example_gemm_persistent", "--M 512 --N 512 --K 128"),
    _b("gemm_streamk/example_tilelang_gemm_streamk", "", (r"n = 1024", "n = 256"), (r"k = 512", "k = 128")),
    _b("grouped_gemm/example_grouped_gemm_bwd", "--K 256 --M 256"),
    _kda("chunk_bwd_intra", LIST_B),
    _b(
        "linear_attention/example_mamba_chunk_scan",
        "--batch 1 --heads 2 --seq_len 512 --chunk_size 128",
        (r"assert_allclose\(ref_program", "assert_allclose(__import__('checks').in_float32(ref_program)"),
        needs=("einops",),
    ),
    _b(
        "linear_attention/example_mamba_chunk_state",
        "--batch 1 --heads 2 --seq_len 512 --chunk_size 128",
        needs=("einops",),
    ),
    _b("warp_specialize/example_warp_specialize_gemm_barrierpipe_stage2", "", (r"16384", "512")),
    _b("warp_specialize/example_warp_specialize_gemm_copy_0_gemm_1", "", (r"1024", "256")),
    _b("warp_specialize/example_warp_specialize_gemm_copy_1_gemm_0", "", (r"16384", "256")),
    _b("warp_specialize/example_warp_specialize_gemm_copy_gemm_0_1"),
    _b("warp_specialize/example_warp_specialize_gemm_softpipe_stage2", "", (r"16384", "256")),
    _b("warp_specialize/example_warp_specialize_flashmla", "--batch 1 --heads 64 --kv_ctx 512", needs=("einops",)),
    _b("deepseek_mla/example_mla_decode_ws", _MLA, needs=("einops",)),
    _b("deepseek_v32/sparse_mla_fwd_pipelined", entry=_SPARSE_ENTRY),
    _b("deepseek_v32/sparse_mla_fwd_seesaw", entry=_SPARSE_ENTRY),
    # What makes its lists is C++, and its reference a Triton kernel.
    _b(
        "minference/example_vertical_slash_sparse_attn",
        entry="from checks import check_vertical_slash\ncheck_vertical_slash(_tl_vs_sparse_flashattn)",
    ),
    _b("norm/layernorm", "", (r"N, D = 4096, 8192", "N, D = 64, 1024")),
    _b("seer_attention/block_sparse_attn_tilelang", "", (r"= 4, 2, 256, 64", "= 1, 2, 256, 64")),
)
