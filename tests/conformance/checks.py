"""Comparisons for scripts that only print how far their results are from their references."""

from __future__ import annotations

from typing import Any

# Sum of squares of the difference over the sum of squares: bfloat16 has 8 bits, and errors of a chunk add up.
_LARGEST = 1e-4


def close(name: str, actual: Any, expected: Any, *_: Any, **__: Any) -> None:
    """AssertionError unless the tensors are finite where they should be, and equal but for rounding."""
    got, want = actual.double().cpu(), expected.double().cpu()
    assert got.shape == want.shape, f"{name}: shapes {tuple(got.shape)} and {tuple(want.shape)}"
    finite = got.isfinite()
    assert bool((finite == want.isfinite()).all()), f"{name}: finite in other places"
    difference = float((got - want)[finite].square().sum() / want[finite].square().sum().clamp_min(1e-30))
    assert difference < _LARGEST, f"{name}: relative squared difference {difference:.2g}"
    print(f"{name}: relative squared difference {difference:.2g}")


def ratio(actual: Any, expected: Any) -> float:
    """The root of the relative squared difference; AssertionError if it is more than rounding."""
    close("the result", actual, expected)
    got, want = actual.double(), expected.double()
    return float((got - want).square().sum().sqrt() / want.square().sum().sqrt().clamp_min(1e-30))


def poison() -> None:
    """Fill what `torch.empty` returns with NaN, so that what neither side writes compares equal."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True


def bench(function: Any, *arguments: Any, warmup: int = 20, rep: int = 10, **keywords: Any) -> float:
    """In place of a script's own timing loop: one call. Timings are not what is looked at here."""
    function(*arguments, **keywords)
    return 1.0


def in_float32(reference: Any) -> Any:
    """A reference that computes in float32 and rounds at last: of float16, products on a CPU round each sum."""

    def computed(*arguments: Any) -> Any:
        return reference(*(each.float() for each in arguments)).to(arguments[0].dtype)

    return computed


# Scripts that time their kernels and compare nothing. The references here are written from the formulas.


def check_retention(builder: Any, postprocess: Any) -> None:
    """o[t] = sum over s <= t of gamma^(t-s) (q[t] . k[s]) v[s] / sqrt(d), where gamma = 1 - 2^(-5-head)."""
    import torch

    batch, length, heads, dim = 2, 192, 3, 64
    q, k, v = (torch.randn((batch, length, heads, dim), device="cuda").half() for _ in range(3))
    actual = postprocess(builder(batch, length, heads, dim, dim)(q, k, v)).reshape(v.shape)
    gamma = 1 - 2.0 ** (-5 - torch.arange(heads, device=q.device).float())
    distance = torch.arange(length, device=q.device)[:, None] - torch.arange(length, device=q.device)[None, :]
    decay = torch.where(distance >= 0, gamma[:, None, None] ** distance.clamp(min=0), 0.0)
    scores = torch.einsum("bthd,bshd->bhts", q.float(), k.float()) * dim**-0.5 * decay
    close("retention", actual, torch.einsum("bhts,bshd->bthd", scores, v.float()))


def _decays(heads: int, chunks: int) -> Any:
    """Sums of logarithms of gates along each chunk of 64, for each position and head."""
    import torch

    gates = torch.nn.functional.logsigmoid(torch.randn((1, chunks, 64, heads), device="cuda"))
    return gates.cumsum(2).reshape(1, chunks * 64, heads)


def check_kkt(builder: Any) -> None:
    """In chunks of 64: a[t, s] = beta[t] (k[t] . k[s]) exp(g[t] - g[s]) where s < t, and 0 elsewhere."""
    import torch

    heads, chunks, dim = 3, 3, 128
    k = torch.randn((1, chunks * 64, heads, dim), device="cuda").bfloat16()
    beta, decay = torch.randn(k.shape[:3], device="cuda").bfloat16(), _decays(heads, chunks)
    actual = builder(1, chunks * 64, heads, dim)(k, beta, decay)
    rows, weights, sums = (each.float().unflatten(1, (chunks, 64)) for each in (k, beta, decay))
    products = torch.einsum("bcthd,bcshd->bcths", rows * weights[..., None], rows)
    within = sums.unsqueeze(-1) - sums.transpose(2, 3).unsqueeze(2)
    expected = (products * within.clamp(max=0).exp()).transpose(2, 3).tril(-1).transpose(2, 3)
    close("a", actual, expected.flatten(1, 2))


def check_delta_state(builder: Any) -> None:
    """States h before each chunk of 64: v = u - w h, and then h exp(g[last]) + k^T (v exp(g[last] - g))."""
    import torch

    heads, chunks, dim = 2, 3, 64
    normalize = torch.nn.functional.normalize
    k, w, u = (normalize(torch.randn((1, chunks * 64, heads, dim), device="cuda"), dim=-1).bfloat16() for _ in range(3))
    decay, state = _decays(heads, chunks), torch.zeros((1, heads, dim, dim), device="cuda")
    types = ("bfloat16", "bfloat16", "float32", "float32", "float32")
    kernel = builder(1, chunks * 64, heads, dim, dim, *types, 64, True, False, True, True)
    states, last, values = kernel(k, w, u, decay, state.bfloat16())
    for chunk in range(chunks):
        part = slice(chunk * 64, chunk * 64 + 64)
        key, weight, update = (each[:, part].float() for each in (k, w, u))
        close(f"h[{chunk}]", states[:, chunk], state) if chunk else None
        value = update - torch.einsum("bthd,bhde->bthe", weight, state.bfloat16().float())
        close(f"v[{chunk}]", values[:, part], value)
        sums = decay[:, part]
        value = (value * (sums[:, -1:] - sums).exp()[..., None]).bfloat16().float()
        state = state * sums[:, -1].exp()[..., None, None] + torch.einsum("bthd,bthe->bhde", key, value)
    close("the last h", last, state)


def check_mla_fp8(builder: Any, reference: Any) -> None:
    """The script's own reference, on the 8-bit keys and values converted to 16 bits."""
    import torch

    batch, heads, length, dim, rope = 2, 64, 256, 128, 64
    q, q_rope = (torch.randn((batch, heads, size), device="cuda").half() for size in (dim, rope))
    kv = torch.randn((batch, length, 1, dim), device="cuda").to(torch.float8_e4m3fn)
    k_rope = torch.randn((batch, length, 1, rope), device="cuda").half()
    actual = builder(batch, heads, 1, length, dim, rope, 64, 64)(q, q_rope, kv, k_rope)
    close("attention", actual, reference(q, q_rope, kv.half(), k_rope))


def check_inference(act_quant: Any, fp8_gemm: Any, fp8_index: Any) -> None:
    """Quantise blocks of 128; multiply with scales per block; score keys: relu(q . k) weighted by head, times scale."""
    import torch

    torch.set_default_dtype(torch.bfloat16)
    rows, columns, depth = 40, 256, 384
    x = torch.randn((rows, depth), device="cuda").bfloat16()
    for rounded in (None, "ue8m0"):
        y, scale = act_quant(x, scale_fmt=rounded)
        restored = y.float() * scale.repeat_interleave(128, dim=1)
        assert float((restored - x.float()).abs().max() / x.float().abs().max()) < 0.07, "act_quant"
        largest = x.float().view(rows, -1, 128).abs().amax(dim=2).clamp_min(1e-4) / 448
        wanted = largest if rounded is None else torch.exp2(torch.ceil(torch.log2(largest)))
        close(f"scales, {rounded}", scale, wanted)
    weight = torch.randn((columns, depth), device="cuda").float().to(torch.float8_e4m3fn)
    weight_scale = torch.rand((columns // 128, depth // 128), device="cuda").float() + 0.5
    y, scale = act_quant(x)
    wide = weight.float() * weight_scale.repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)
    product = (y.float() * scale.repeat_interleave(128, dim=1)) @ wide.T
    close("fp8_gemm", fp8_gemm(y, scale, weight, weight_scale), product)
    heads, queries, keys, dim = 32, 3, 640, 128
    q = torch.randn((2, queries, heads, dim), device="cuda").float().to(torch.float8_e4m3fn)
    k = torch.randn((2, keys, dim), device="cuda").float().to(torch.float8_e4m3fn)
    q_scale = torch.rand((2, queries, heads), device="cuda").float()
    k_scale = torch.rand((2, keys), device="cuda").float()
    logits = torch.einsum("bmhd,bnd->bmnh", q.float(), k.float()).relu()
    scores = torch.einsum("bmnh,bmh->bmn", logits, q_scale) * k_scale[:, None, :]
    close("fp8_index", fp8_index(q, q_scale, k, k_scale), scores)


def check_vertical_slash(builder: Any) -> None:
    """Attention to whole blocks along diagonals, below the own row, and to single columns, each row in at most one."""
    import torch

    small = "CPU" in torch.cuda.get_device_name()
    heads, length, dim, vertical, slash = (1, 192, 64, 70, 2) if small else (8, 8192, 64, 1000, 60)
    blocks = length // 64
    q, k, v = (torch.randn(1, heads, length, dim, dtype=torch.float16, device="cuda") for _ in range(3))
    count = torch.zeros(1, heads, blocks, dtype=torch.int32, device="cuda")
    offset = torch.zeros(1, heads, blocks, slash, dtype=torch.int32, device="cuda")
    columns = torch.zeros(1, heads, blocks, dtype=torch.int32, device="cuda")
    index = torch.zeros(1, heads, blocks, vertical, dtype=torch.int32, device="cuda")
    seen = torch.zeros(heads, length, length, dtype=torch.bool)
    below = torch.ones(length, length).tril().bool()
    for head in range(heads):
        for block in range(blocks):
            rows = slice(block * 64, block * 64 + 64)
            chosen = [block, *torch.randperm(block)[: min(slash - 1, block)].tolist()]
            count[0, head, block] = len(chosen)
            offset[0, head, block, : len(chosen)] = torch.tensor(chosen) * 64
            left = [each for each in range(block * 64) if each // 64 not in chosen][:: head + 2][:vertical]
            columns[0, head, block] = len(left)
            index[0, head, block, : len(left)] = torch.tensor(left, dtype=torch.int32)
            for each in chosen:
                seen[head, rows, each * 64 : each * 64 + 64] = below[rows, each * 64 : each * 64 + 64]
            seen[head, rows, left] = True
    made = builder(1, heads, length, dim, vertical, slash)(q, k, v, count, offset, columns, index)
    for head in range(heads):
        scores = q[0, head].float() @ k[0, head].float().T * dim**-0.5
        scores = scores.masked_fill(~seen[head].to(scores.device), float("-inf"))
        close("attention", made[0, head], scores.softmax(-1) @ v[0, head].float())
