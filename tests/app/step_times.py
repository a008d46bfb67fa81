# SPDX-License-Identifier: Apache-2.0
"""The time of a training step, written a second time: docs/plan.md's formulas in plain Python, on cluster files and
rows of benchmarks/plan/rows.csv. plan_test.py compares p3d with it, row by row.

Names are short, as in the papers: l layers, h hidden, a heads, s tokens of a sequence, V vocabulary, T tokens of a
microbatch; t, p, dp, cp, ep sizes of axes; b sequences of a microbatch, m microbatches, v chunks.
"""
import ast
import csv
import math
from math import ceil, sqrt, log


def interp_log(curve, S):
    # curve: [(bytes, share)], log-linear in bytes; below the first point the
    # time is that of the first (share ~ S); above the last constant
    if S <= curve[0][0]:
        return curve[0][1] * S / curve[0][0]
    for (x0, y0), (x1, y1) in zip(curve, curve[1:]):
        if S <= x1:
            u = (log(S) - log(x0)) / (log(x1) - log(x0))
            return y0 + u * (y1 - y0)
    return curve[-1][1]


def wave(tiles, units, soft):
    w = tiles / units
    return (1 - soft) + soft * w / ceil(w)


def gemm(c, M, N, K, fp8=False, out=1.0, groups=1):
    """seconds of `groups` products M x N x K (M, N the output, K the reduction)"""
    if M <= 0 or N <= 0 or K <= 0:
        return 0.0
    d = c['device']
    g = d['gemm']
    tm, tn = g['tile']
    tiles = groups * ceil(M / tm) * ceil(N / tn)
    e = g['max'] / (1 + g['size'] * (1 / M + 1 / N + 1 / K)) * wave(tiles, g['units'], g['wave'])
    t = 2.0 * groups * M * N * K / ((d['peak_fp8'] if fp8 else d['peak']) * e * out)
    al = g['align'] * (2 if fp8 else 1)
    if M % 2 or N % 2 or K % 2:
        t *= g['odd_penalty']
    elif M % al or N % al or K % al:
        t *= g['align_penalty']
    return t


def mem(c, bytes_, tensor):
    d = c['device']
    return bytes_ / (d['hbm'] * d['hbm_share'] / (1 + d['hbm_small'] / tensor)) if bytes_ > 0 else 0.0


def group(c, n, stride):
    """levels that a group of n ranks with a stride spans -> list of (level, members inside, )"""
    out = []
    inside = 1
    for L in c['level']:
        size = L['size']
        g = max(1, min(n, size // stride)) if size > stride else 1
        g = max(g, inside)
        out.append((L, g))
        inside = g
        if g >= n:
            break
    return out


def ring_bw(c, n, stride, S, alltoall=False):
    """per-rank bandwidth and latency per hop of a collective of S bytes; the narrowest level counts.
    A ring crosses a level once a group of ranks inside it (x prev); an all-to-all once a rank."""
    bw = None
    lat = 0.0
    prev = 1
    for k, (L, g) in enumerate(group(c, n, stride)):
        if g > prev or n == 1:
            b = L['bandwidth'] * interp_log(L['share'], S) * (prev if k > 0 and not alltoall else 1)
            bw = b if bw is None else min(bw, b)
            lat = max(lat, L['latency'])
        prev = g
    return bw, lat


def allreduce(c, n, stride, S):
    if n <= 1 or S <= 0:
        return 0.0
    bw, lat = ring_bw(c, n, stride, S)
    # latency: the smaller of ring and tree
    steps = min(2 * (n - 1), 2 * ceil(math.log2(n)))
    return steps * lat + 2 * (n - 1) / n * S / bw


def gather(c, n, stride, S):
    if n <= 1 or S <= 0:
        return 0.0
    bw, lat = ring_bw(c, n, stride, S)
    return ceil(math.log2(n)) * lat + (n - 1) / n * S / bw


def p2p(c, dist, S, start=0):
    if S <= 0:
        return 0.0
    for L in c['level']:
        if dist < L['size']:
            break
    return L['latency'] + S / (L['bandwidth'] * L.get('p2p', interp_log(L['share'], S)))


def predict(r, c, k, detail=False):
    """r: row, c: cluster, k: kernels generation constants -> seconds (or the breakdown)"""
    d = c['device']
    bw = d['hbm'] * d['hbm_share']
    l, h, a, s, V = r['layers'], r['hidden'], r['heads'], r['seq_len'], r['vocab_size']
    kv, hd, ffn = r['kv_heads'], r['head_dim'], r['ffn']
    t, dp, p, cp = r['tp'], r['dp'], r['pp'], r.get('cp', 1)
    b = r['micro']
    v = r['virtual_stages']
    m = r['batch'] // (dp * b)
    gated = 2 if r['activation'] in ('swiglu', 'geglu', 'swiglu_clamped') else 1
    prec = r.get('precision', 'bf16')
    g_bytes = 2.0 if prec == 'fp16' else 4.0  # bytes of an accumulated gradient
    T = s * b // cp
    a_t = a / t
    qo = a * hd
    qkv = (a + 2 * kv) * hd
    vm = k['vocab_multiple'] * t
    Vt = (ceil(V / vm) * vm if k['vocab_multiple'] > 1 else (V // t) * t) // t
    fp8 = prec == 'fp8' and d.get('peak_fp8', 0) > 0

    def G(M, N, K, o=1.0, g=1, f=fp8):
        return gemm(c, int(M), int(N), int(K), f, o, g)

    E = r.get('experts', 0)
    ep = r.get('ep', 1)
    wg = d['gemm']['wgrad']
    ffn_d = r.get('shared_ffn', 0) if E else ffn  # dense part of the feed-forward
    shapes = [(qkv / t, h), (h, qo / t)] + ([(gated * ffn_d / t, h), (h, ffn_d / t)] if ffn_d else [])
    gf = sum(G(T, N, K) for N, K in shapes)
    gd = sum(G(T, K, N) for N, K in shapes)
    gw = sum(G(N, K, T, wg) for N, K in shapes)
    moe_mem = moe_x = 0.0
    P_exp = 0
    width = ffn_d
    if E:
        kx = r['topk']
        fe = r['moe_ffn']
        El = E // ep
        Me = max(1, T * kx // El)
        et = r.get('etp', 1)
        xs = [(gated * fe / et, h), (h, fe / et)]
        gf += sum(G(Me, N, K, 1.0, El) for N, K in xs) + G(T, E, h, 1.0, 1, False)
        gd += sum(G(Me, K, N, 1.0, El) for N, K in xs) + G(T, h, E, 1.0, 1, False)
        gw += sum(G(N, K, Me, wg, El) for N, K in xs) + G(E, h, T, wg, 1, False)
        moe_mem = (
            mem(c, 8.0 * T * kx * h, 2.0 * T * kx * h) * d['hbm_share'] / d.get('permute_share', 0.19)
        )  # permute, unpermute: 2 x (read + write)
        if ep > 1:
            Sx = 2.0 * T * kx * h
            xb, xl = ring_bw(c, ep, t * cp, Sx / ep, True)
            moe_x = 2 * ((ep - 1) * xl + Sx * (ep - 1) / ep / xb)  # dispatch + combine
        P_exp = El * (gated + 1) * h * fe / et
        width = ffn_d + kx * fe * t / et
    # attention
    eff = d['attention'] * k['attention']
    if not k['flash']:
        eff /= 1 + d['gemm']['size'] * (2 / s + 1 / hd)
    af = 4.0 * b * s * (s / cp) * qo / t * (0.5 if k['flash'] else 1.0) / (d['peak'] * eff)
    ab = af * k['attention_bwd']
    score = a_t * s * (s / cp) * b
    sf = mem(c, k['score_bytes'] * score, 2.0 * score)
    sb = k['score_bwd'] * sf
    # memory-bound kernels
    sp = t if r.get('sequence') else 1
    mf = mem(c, 2.0 * T * k['bytes'] * (10 * h / sp + 8 * qo / t + 4 * gated * width / t), 2.0 * T * h) + moe_mem
    mb = k['bytes_bwd'] * mf
    # tensor-parallel collectives: two a pass (all-reduce, or reduce-scatter + all-gather of the same bytes)
    S = 2.0 * T * h
    ar = allreduce(c, t, 1, S)
    # context parallel: ring of keys and values, hidden behind attention
    cpx = 0.0
    if cp > 1:
        kvb = 2.0 * 2.0 * T * kv * hd / t
        step = kvb / ring_bw(c, cp, t, kvb)[0] + ring_bw(c, cp, t, kvb)[1]
        cpx = max(0.0, (cp - 1) * step - af * (cp - 1) / cp)
    # passes of one layer
    coll = 2 * k['launch_coll'] if t > 1 else 0
    hf = (k['launch_fwd'] + coll) * d['launch']
    hb = (k['launch_bwd'] + coll) * d['launch']
    q = k['soft']

    def soft(x, y):
        return (x**q + y**q) ** (1 / q) if x > 0 or y > 0 else 0.0

    F = gf + af + sf + mf + 2 * ar + cpx + moe_x
    B = gd + gw + ab + sb + mb + 2 * ar + 2 * cpx + moe_x
    Ft = soft(F, hf)
    Bt = soft(B, hb)
    P_layer = (
        h * qkv + qo * h + (gated + 1) * h * ffn_d + E * h + 4 * h + ffn_d + qkv + h
    )  # sharded over t; experts apart (P_exp a rank)
    shards = dp if r['shard'] in ('gradients', 'weights') else 1  # accumulated gradients are already scattered
    acc = (2.0 + 2.0 * g_bytes) * (P_layer / t + P_exp) / shards / bw if m > 1 else 0.0
    rec = r['recompute']
    Rt = Ft if rec == 'full' else (af + sf if rec == 'selective' else 0.0)
    # sharded weights: gathers before each pass, reduce-scatter after backward, behind the layer before
    shard = r['shard']
    zf = zb = 0.0
    sm = 0.0
    zfirst = 0.0
    gst = t * cp
    if shard == 'weights' and dp > 1:
        ag = gather(c, dp, gst, 2.0 * P_layer / t)
        rs = gather(c, dp, gst, k['reduce_bytes'] * P_layer / t)
        zf = max(Ft * (1 + k['sm_share'] * min(1.0, ag / Ft)), ag) - Ft
        wb = Bt + Rt
        zb = max(wb * (1 + k['sm_share'] * min(1.0, (ag + rs) / wb)), ag + rs) - wb
        root = Vt * h * (1 if r['tied'] else 2)
        zfirst = ag + rs + m * (gather(c, dp, gst, 2.0 * root) + gather(c, dp, gst, k['reduce_bytes'] * root))
    layer_f = Ft + zf
    layer_b = Bt + Rt + acc + zb
    # head, loss, embedding
    hl = k['launch_head'] * d['launch']
    lm = mem(c, k['loss_bytes'] * T * Vt, 2.0 * T * Vt)
    acc_v = (2.0 + 2.0 * g_bytes) * Vt * h / shards / bw if m > 1 else 0.0
    head_f = soft(G(T, Vt, h) + lm + 2 * mem(c, 4.0 * T * h, 2.0 * T * h), hl / 3)
    head_b = soft(G(T, h, Vt) + G(Vt, h, T, d['gemm']['wgrad']) + lm + ar, 2 * hl / 3) + acc_v
    emb = mem(c, 16.0 * T * h, 2.0 * T * h) + ar
    # stages
    ls = [l // p + (1 if i < l % p else 0) for i in range(p)]
    st = [x * (layer_f + layer_b) for x in ls]
    st[0] += emb
    st[-1] += head_f + head_b
    x = 0.0
    if p > 1:
        x = p2p(c, t * dp * cp, S / (t if k['scatter'] else 1))
        if k['scatter'] and t > 1:
            x += gather(c, t, 1, S)
        x += k['launch_p2p'] * d['launch']
    # exchanges of a microbatch that a stage waits for: one at the ends of a
    # plain pipeline, two inside, two a chunk when interleaved
    nx = [0 if p == 1 else 2 * v if v > 1 else 1 if i in (0, p - 1) else 2 for i in range(p)]
    imax = max(range(p), key=lambda i: (st[i] + nx[i] * x, -i))
    tmax = st[imax]
    tsum = sum(st)
    p2p_t = m * nx[imax] * x + 2 * (p - 1) * x
    fill = (tsum - tmax) / v
    if shard == 'weights':
        fill += zfirst
    # gradients
    P_x = max(ls) * P_exp
    P_rank = max(ls) * P_layer / t + Vt * h * (1 if (p > 1 or r['tied']) else 2) + s * h
    grad = k['reduce_bytes'] * P_rank
    par = 2.0 * P_rank
    dpx = 0.0
    if dp > 1 and shard != 'weights':
        if shard == 'none':
            comm = allreduce(c, dp, gst, grad) + allreduce(c, dp // ep, gst * ep, k['reduce_bytes'] * P_x)
            tail = 0.0
        elif shard == 'optimizer':
            comm = gather(c, dp, gst, grad) + gather(c, dp // ep, gst * ep, k['reduce_bytes'] * P_x)
            tail = gather(c, dp, gst, par) + gather(c, dp // ep, gst * ep, 2.0 * P_x)
        else:
            comm = m * gather(c, dp, gst, grad)
            tail = gather(c, dp, gst, par)
        if k['overlap']:
            win = max(ls) * (Bt + Rt) * (m if shard == 'gradients' else 1)
            dpx = max(comm * k['sm_share'], comm - win) + comm / max(ls) / (m if shard == 'gradients' else 1)
            dpx = min(dpx, comm)
            tail = max(tail - max(ls) * Ft, tail / max(ls))
        else:
            dpx = comm
        dpx += tail
    es = allreduce(c, 2, t * dp * cp * (p - 1), k['reduce_bytes'] * Vt * h) if p > 1 and r['tied'] else 0.0
    opt = k['opt_bytes'] * (P_rank / (1 if shard == 'none' else dp) + P_x / (1 if shard == 'none' else dp // ep)) / bw
    fixed = c.get('fixed', 0.0)
    base = m * tmax + fill + p2p_t + dpx + es + opt + fixed
    N = t * dp * p * cp
    jit = base * c['jitter'] * sqrt(2 * log(max(N, 2)))
    tot = base + jit
    if not detail:
        return tot
    n = ls[imax] * m
    rf = 2 if rec == 'full' else 1
    rs_ = 1 if rec == 'selective' else 0
    det = dict(
        total=tot,
        gemm_forward=n * gf * rf,
        gemm_dgrad=n * gd,
        gemm_wgrad=n * gw,
        attention=n * ((af + sf) * (rf + rs_) + ab + sb),
        memory_bound=n * (rf * mf + mb + acc),
        tp=n * ar * 2 * (rf + 1),
        cp=n * cpx * (rf + 2),
        ep=n * moe_x * (rf + 1),
        launch=n * (rf * (Ft - F) + Bt - B),
        weights=n * (zf + zb),
        head_embedding=m * (tmax - ls[imax] * (layer_f + layer_b)),
        bubble=fill,
        p2p=p2p_t,
        dp=dpx,
        embedding_sync=es,
        optimizer=opt,
        fixed=fixed,
        jitter=jit,
    )
    return det


UNFUSED = dict(attention=1.0, flash=False, attention_bwd=2.0, score_bytes=12.4, score_bwd=1.5, bytes=0.62,
               bytes_bwd=1.5, launch_fwd=104, launch_bwd=193, launch_coll=5, launch_head=148, launch_p2p=20, soft=5.66,
               loss_bytes=12.0, scatter=True, overlap=False, sm_share=0.05, reduce_bytes=2.0, opt_bytes=30.0,
               vocab_multiple=128)
FLASH = dict(UNFUSED, attention=2.0, flash=True, attention_bwd=2.9, score_bytes=0.0, bytes=1.3, bytes_bwd=1.75,
             launch_fwd=45, launch_bwd=90, launch_head=60, launch_p2p=10, overlap=True)
KERNELS = {"unfused": UNFUSED, "profiled": dict(UNFUSED, launch_p2p=0, vocab_multiple=1), "fused": UNFUSED,
           "flash": FLASH, "fp8": FLASH}


def read_toml(path):
    """What cluster files need of TOML: sections, lists of sections, numbers, strings and lists on one line."""
    top = here = {}
    for line in path.read_text().splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("[["):
            here = {}
            top.setdefault(line.strip("[]"), []).append(here)
        elif line.startswith("["):
            here = top.setdefault(line.strip("[]"), {})
        elif line:
            key, value = line.split("=", 1)
            here[key.strip()] = ast.literal_eval(value.strip())
    return top


def read_cluster(path):
    f = read_toml(path)
    d, g = f["device"], f["gemm"]
    device = dict(peak=d["bf16"], peak_fp8=d.get("fp8", 0.0), attention=f["attention"]["best"], hbm=d["bandwidth"],
                  hbm_share=d["bandwidth_share"], hbm_small=1e6, permute_share=d.get("permute_share", 0.19),
                  launch=d["launch"],
                  gemm=dict(max=g["best"], size=g["size"], tile=(g["tile_rows"], g["tile_cols"]), units=g["units"],
                            wave=0.5, align=g.get("align", 8), align_penalty=g.get("align_penalty", 1.3),
                            odd_penalty=g.get("odd_penalty", 1.9), wgrad=g["weight_gradient"]))
    levels = [dict(size=x.get("size", 10**9), bandwidth=x["bandwidth"], latency=x["latency"], p2p=x["message_share"],
                   share=x["share"]) for x in f["level"]]
    return dict(device=device, level=levels, jitter=f["jitter"]["sigma"])


def steps(rows, clusters):
    """(id, seconds) of each row of the table, with clusters of a folder."""
    with open(rows) as file:
        table = list(csv.DictReader(file))
    for row in table:
        h, a = int(row["model.hidden"]), int(row["model.heads"])
        r = dict(layers=int(row["model.layers"]), hidden=h, heads=a, kv_heads=a, head_dim=h // a, ffn=4 * h,
                 seq_len=int(row["model.seq_len"]), vocab_size=int(row["model.vocab_size"]), activation="gelu",
                 tied=row["model.tied_embeddings"] == "true", precision=row["run.precision"],
                 tp=int(row["parallel.tp"]), dp=int(row["parallel.dp"]), pp=int(row["parallel.pp"]),
                 micro=int(row["batch.micro"]), batch=int(row["batch.global"]),
                 virtual_stages=int(row["pipeline.virtual_stages"] or 1), recompute=row["memory.recompute"],
                 shard=row["memory.shard"])
        cluster = read_cluster(clusters / (row["cluster"] + ".toml"))
        yield row["id"], predict(r, cluster, KERNELS[row["kernels"]])
