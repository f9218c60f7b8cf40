"""Bodies of kernels on integers: A and B of eight, C of three by four, n and m; bx is 0 or 1."""

DEVICE_PROGRAMS = (
    """
for i in T.serial(4):
    if A[i] > n:
        B[i] = A[i] - n
    elif A[i] == m or A[i] < 0:
        B[i] = -A[i]
    else:
        B[i] = i + bx * 0
B[7] = n if m < 0 else m
""",
    """
s = T.alloc_var("int32", 5)
for i in T.serial(1, 8, 2):
    if i == n:
        continue
    s = s + A[i]
    if s > 20:
        break
    s += 1
B[0] = s
k = T.alloc_var("int32", 6)
while k > m and not k == 0:
    k -= 2
    if k == 2:
        continue
    B[k] = k * 3 - 1
B[1] = k
""",
    """
for i, j in T.grid(3, 4):
    C[i, j] = (i * 4 + j) // 3 - (i - j) % 3 + (i << j) - (A[i] >> 1)
for i, j in T.Parallel(3, 4):
    C[i, j] = C[i, j] * 2 + T.max(i, j) - T.min(n, j) if i != j else C[i, j] & 7 | 8 ^ i
""",
    """
x = n + m * 2
y, z = x - 1, (x, n)
w = z[1] * y
if n > 2 and m < 0 and not x > 5:
    B[0] = w
    t = w + 1
    B[1] = t + z[0]
if 0 < n < 5 and m <= -2 != n:
    B[2] = T.if_then_else(n >= 3, 1, 2)
B[3] = -n + ~m - +x + T.abs(m) + abs(m) + max(n, m) + min(3, n)
""",
    """
@T.macro
def add(p, q=2):
    B[p] += q
def square(v):
    return v * v
def both(a, b, *, k=1):
    c = square(a) + b
    return c * k, c - k
add(n)
add(0, q=n)
for i in T.serial(2):
    add(i, i + 5)
u, v = both(n, m, k=3)
B[5] = u
B[6] = v
f = lambda a, b=m: a - b
B[7] = f(n) + f(n, 1) + f(b=2, a=3)
""",
    """
a = T.alloc_local((4,), "int32")
for i in T.unroll(4):
    a[i] = i * n
for i in T.serial(4):
    a[3 - i] = a[i] + A[i]
    for j in T.serial(i + 1):
        if j > n:
            break
        a[j] = a[j] + 1
        if A[j] == 0:
            continue
        a[i] -= j
    B[i] = a[i]
B[4] = a[0] + a[3]
""",
    """
for k in (0, 1, 2):
    for i in T.serial(2):
        B[k + i] = B[k + i] + k
    if k == 1:
        continue
    B[k + 4] = n * k
values = [i * i for i in range(4) if i != 2]
for c, v in [(0, values[0]), (1, values[1]), (2, values[-1])]:
    B[c] += v + len(values)
total = sum(values)
while total > 3:
    total -= 4
B[7] = total
""",
    """
r = T.alloc_var("int32")
r = n
for i in T.Parallel(8):
    if i % 2 == 1 and A[i] > 0:
        B[i] = A[i] * r
    else:
        if i < 4: B[i] = 0
        else:
            B[i] = A[i] // 2 - A[i] % 4
for i in T.Parallel(8):
    B[i] += i if A[i] > 2 else 0
""",
    """
for i in T.serial(8):
    for j in T.serial(3):
        if C[j, 0] > i:
            break
        if (A[i] < C[j, 1]) == (i > 2):
            continue
        for k in range(2):
            if k == n - 2:
                break
            B[i] = B[i] + k + 1
        B[i] -= 1
    if i >= n + 2:
        break
for (i,) in T.grid(4):
    if A[i] > n:
        break
    B[i] += 2
""",
    """
p = A[0]
A[0] = p + 1
B[0] = p
q: T.int32 = n
q = q * 2
B[1], B[2] = q, A[0]
A[1], A[2] = A[2], A[1]
x = y = q + 1
B[3] = x - y + (3 if bx == 0 else 3)
pass
T.serial(3)
B[4] = (z := n + 1) * z
assert 1 < 2, "never"
""",
    """
for i in T.serial(4):
    for k in (0, 1):
        if k == 1:
            break
        B[k] = i
    else:
        continue
    for k in (0, 1):
        B[k + 2] = i * 2
    else:
        if i == n - 1:
            break
        if A[i] > 3:
            continue
    B[i + 4] = A[i]
""",
    """
k = T.alloc_var("int32", 0)
while k < 6:
    k += 1
    for j in (1, 2):
        for l in (1, 2):
            if l == 2:
                break
        else:
            B[7] = 99
        if j == 2:
            break
    else:
        B[6] = 98
    if k == n:
        continue
    B[k] = k * 2
    if k == 5:
        break
B[0] = k
""",
    """
v = T.alloc_var("int32", 1)
w = T.alloc_var("int32", 2)
for i in T.serial(3):
    v, w = w, v + w
    B[i] = v
if n > 2:
    t = v
    v = w
    w = t
else:
    v = 0
B[4] = v
B[5] = w
for i in T.unroll(2):
    v -= i
    while v > w:
        v -= 3
        if v < 0:
            break
B[6] = v
B[7] = (v + 7) % 4 - (v // 2) + (-v) % 3
""",
    """
for i in T.serial(8):
    if i < n:
        if A[i] < 0:
            continue
        B[i] = A[i]
    elif i == 5:
        for j in T.serial(3):
            if j == 1:
                continue
            if A[j] > 6:
                break
            B[j] += 1
        if A[5] == 0:
            break
    else:
        B[i] = -i
    B[7] += 1
""",
)
