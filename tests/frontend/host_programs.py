"""Bodies of functions that run while a program is built: Python, with `note(...)` for what can be seen."""

HOST_PROGRAMS = (
    """
a, *b, (c, d) = 1, 2, 3, [4, 5]
[e, f], g = (a, b), c = (7, 8), 9
x = y = [0, 1, 2, 3]
x[1] += 5
x += [4]
x[2], x[-1] = x[-1], x[2]
y[1:3] = [8]
note(a, b, c, d, e, f, g, x, y)
h: int = 3
h **= 2; h //= 2; h <<= 3; h |= 1; h ^= 6; h -= 1; h &= 62; h >>= 1; h %= 11; h *= 4; h /= 8
note(h, x is y, x == [0, 8, 2], len(x))
""",
    """
def f(a, b=2, /, c=3, *rest, d, e=5, **more):
    note("f", a, b, c, rest, d, e, more)
    if a > 10:
        return a, b
    return [a, *rest]
note(f(1, d=4), f(11, 2, 3, 4, 5, d=6, z=7), f(*[1, 2], **{"d": 3, "e": 4}))
g = lambda x, y=10, *, z=1: x * y - z
note(g(1), g(1, 2), g(x=3, z=5), (lambda: 7)(), (lambda *a: a)(1) if False else 0)
def outer(n):
    def inner(k):
        return k + n + h
    h = 100
    return inner(1)
note(outer(5))
f(1)
""",
    """
total = 0
for i in range(10):
    if i == 2:
        continue
    if i > 6 and total > 3:
        break
    for j in range(i, 0, -2):
        total += i * j
        if j % 3 == 0:
            note("j", i, j)
            break
    else:
        note("no break", i)
else:
    note("through")
note(i, total)
n = 5
while n > 0:
    n -= 1
    if n == 3:
        continue
    note(n)
    if n < 2:
        break
else:
    note("else")
while n < 3:
    n += 1
else:
    note("done", n)
""",
    """
x = [i * i for i in range(6) if i % 2 if i > 1]
y = {k: v for k, v in zip("abc", (1, 2, 3)) if v != 2}
z = sorted({a % 3 for a in (1, 2, 3, 4)})
w = list((i, j) for i in range(3) for j in range(i))
note(x, y, z, w, [[c for c in r] for r in ("ab", "c")], sum(i for i in x), {**y, "d": 4, "a": 0}, [*x, *w, 1])
v = (*x, 2)
i = 3
note([i for i in (1, 2)], i, (n := 4) + n, n, any(k > 8 for k in x), {1, 2} | {3}, {**{}, 1: 2})
note(x[1:], x[::-1], x[-1], x[:1], w[0][0], "abc"[1], y["a"], (1, 2, 3)[0:2], x[slice(0, 1)])
""",
    """
def t(v, name):
    note(name)
    return v
note(t(0, "a") and t(1, "b"), t(2, "c") or t(3, "d"), not t(0, "e"), t(1, "f") and t(0, "g") or t([], "h"))
note(1 < t(2, "i") < 3, 3 > t(1, "j") > t(2, "k") < t(5, "l"), 1 == 1.0 != 2, 2 in [1, 2] is True)
note(t(4, "m") if t(0, "n") else t(5, "o"), 6 if t(1, "p") else t(7, "q"), None is None, 3 not in (1, 2))
note(-2 ** 2, +3, ~5, not 0, -7 // 2, -7 % 3, 7 / 2, 2 ** -1, 1 << 4, 255 >> 3, 6 & 3, 6 | 3, 6 ^ 3)
note(10 - 2 - 3, 2 ** 3 ** 2)
note("a" + "b", "ab" * 2, [1] + [2], (1,) * 3, True + 1, 5 <= 5, 5 >= 6, 1 != 1, "a" < "b", [1, 2] == [1, 2])
""",
    """
name, value, width = "x", 3.14159, 8
note(f"{name}={value:.2f}|{value:>{width}.3f}|{name!r:>5}|{{}}|{width=}|{width + 1 = }|{name:^{width}}|{name!s}")
note(f"{'a' if width > 7 else 'b'}{width:03d}{[1, 2][0]}{ {'k': 1}['k'] }" "tail" f"{name}")
note(rf"\\d{name}", b"a" b"\\x00", 'it\\'s')
note(1_000, 0x1F, 0b101, 0o17, 1e3, .5, 5., 1.5e-3, "\\u00e9\\t\\x41", r"\\n", '''a
b''', ..., None, True)
note(f"{value!r}", f"{None}", f"{(1, 2)!s:>10}", f"{width:x}", f"{width:#b}", f"{-width:+d}", f"{1234567:,}")
""",
    """
import math
from math import floor as down, pi
import os.path
k = down(pi * 2) + math.ceil(1.2)
note(k, os.path.basename("a/b"), math.sqrt(16))
s = "Hello"
note(s.upper(), s.find("l"), ",".join(["a", "b"]), [3, 1, 2].index(1), {"a": 1}.get("b", 2))
q = []
q.append(1)
q.extend([2, 3])
d = {}
d["k"] = q
d["k"][0] = 9
note(q, d, q.pop(), len(q), max(q), min(3, 1, 2), abs(-2), round(2.5), int("7"), float(2), bool([]), divmod(7, 2))
assert k == 8, f"k is {k}"
assert q
""",
    """
def first(items, want):
    for n, item in enumerate(items):
        if item == want:
            return n
    return None
def check(v):
    if not v:
        raise ValueError("empty")
    elif v == 1:
        note("one")
    else:
        note("more", v)
note(first("abc", "b"), first((1, 2), 3), first([], 0))
check(1)
check([2])
if first("ab", "b") == 1: note("yes")
else: note("no")
x = 5
if x < 3:
    note("small")
elif x < 6:
    note("middle")
    x = 7
pass
...
"text"
check(0)
note("never")
""",
    """
def apply(f, *args, **kw):
    return f(*args, **kw)
def twice(f):
    return lambda v: f(f(v))
inc = lambda v: v + 1
note(apply(max, 1, 2), apply(twice(inc), 5), apply(lambda a, b=3: a - b, 10), apply(inc, v=2), twice(twice(inc))(0))
n = 1
def late():
    return n + m
m = 10
note(late())
n = 2
fs = [lambda: k for k in (1, 2)]
p, q = (3, 4) if n == 2 else (5, 6)
pairs = [(1, "a"), (2, "b")]
for number, (letter) in pairs:
    p += number
    q = q * number
    note(number, letter, p, q)
for a, (b, *c) in [(1, (2, 3, 4)), (5, (6,))]:
    note(a, b, c)
return p, q
note("unreached")
""",
    """
v = 1
def f(x=v, *, y=note("once")):
    return x, y
v = 2
g = lambda x=v, *rest, y=v, **more: (x, y, rest, more)
v = 3
note(f(), f(y=1), g(), g(1, 2, 3), g(y=4), g(z=5), (lambda x, /, *, k: x - k)(1, k=2))
def swap(x, y):
    x, y = y, x
    return x, y
x, y = swap(*(v, 4))
note(x, y, (lambda: (yield_, x)[0])() if x < 0 else swap(y=1, x=2), [f() for v in (7, 8)])
s, t = {1}, {"a": 1}
u = s, t
s |= {2}; t |= {"b": 2}; s -= {1}; s ^= {3}
note(sorted(s), sorted(u[0]), t, u[1])
g(1, x=2)
""",
    """
a, b = (1, 2, 3)
""",
    """
a, *b, c = [1]
""",
    """
x = {"a": 1}
x["a"] += 1
y = x["b"]
""",
    """
t = (1, 2)
note(t[0])
t[0] = 3
""",
    """
note(1)
v = undefined + 1
""",
    """
for i in 5:
    note(i)
""",
    """
x = None
note(x is None)
y = x + 1
""",
    """
def scaled(x, by=None):
    note(x)
    return by * x
scaled(3)
""",
    """
note("deep", ((((1, 2), 3), [4]), {5: (6,)}))
x = 7 // 0
""",
    """
def f(a, b):
    return a
f(1, 2, 3)
""",
    """
def f(*, a):
    return a
note(f(a=1))
f(b=1)
""",
    """
assert 1 == 2, "message"
""",
    """
raise KeyError
""",
    """
x = [1, 2]
note(x < [1, 3], x[1:], x * 2, 3 in x)
z = -"a"
""",
    """
x = "a" - 1
""",
    """
x = len(5)
""",
    """
x = [1][2]
""",
    """
def f():
    note("in")
    x = missing
    return x
def g():
    y = f()
    return y
g()
""",
    """
for i in (0, 1, 2):
    for k in (3, 4):
        note(i, k)
    else:
        if i == 1:
            break
        continue
    note("never")
else:
    note("through")
n = 3
while n:
    n -= 1
    while n > 5:
        pass
    else:
        if n == 1:
            break
        continue
    note("never")
else:
    note("through")
note(i, k, n)
""",
    """
note(len([1]))
len = 3
note(len)
""",
    """
def f(n):
    for i in range(n):
        if i == 2:
            return i
    else:
        return "none"
note(f(2), f(5))
def g(n):
    while True:
        n += 1
        for k in range(n):
            if k > 3:
                return n, k
        else:
            continue
        break
note(g(0))
if (m := 3) > 2 and (q := m + 1):
    note(m, q)
note([z := 5, z + 1], (lambda t: t)(z))
x = 0
for x in range(3):
    pass
note(x)
note(1 < 2 < 3 != 4, not 1 == 2, 1 if 0 else 2 if 0 else 3)
note(*[1, *(2, 3)], **{}) if True else 0
note({**{"a": 1}, "b": 2, **{"a": 3}})
s = "abc"
note(s[::-1], s[1:], s * 2, f"{s!r:>6}{1.5:.2f}{{}}")
note(-7 // 2, -7 % 3, 7 % -3, 2 ** -1, 1 / 4, 5 & 3 | 8 ^ 1, ~5, 1 << 3 >> 1)
note((1, 2) < (1, 3), [1] == [1.0], "a" in "abc", 3 not in [1], None is None)
""",
)
