#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One training step of a deep residual network in JAX, several variants, each one jitted function with donated buffers;
common.py tells the problem.

    bench/peers/.venv/bin/python bench/peers/train_jax.py --layers 1024 --width 32 --batch 128 --threads 2 --json

The loop over layers is lax.scan. Rows: states are [batch][width]; columns: [width][batch]. Those marked autodiff let JAX
derive the backward pass; `hand-written` ones give it as a second scan over the states and tanhs that the first one kept.
"""
import common

options = common.prepare(__doc__)
common.tell_xla(options.threads)

import jax  # noqa: E402  after the presets are cleared
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", options.threads)
X, LABELS, NUMBERS = common.numbers(options)
LAYERS, BATCH = options.layers, options.batch
SCALE = LAYERS**-0.5
B1, B2 = common.BETA1, common.BETA2


def cross_entropy(logits, labels):
    chosen = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=1) - chosen).mean()


def adamw(p, g, m, v, step):
    """One array's update; step counts from 1."""
    m = B1 * m + (1 - B1) * g
    v = B2 * v + (1 - B2) * g * g
    root = jnp.sqrt(v / (1 - B2**step)) + common.EPSILON
    return p * (1 - common.RATE * common.WEIGHT_DECAY) - common.RATE * (m / (1 - B1**step)) / root, m, v


def update(p, g, m, v, step):
    new = {name: adamw(p[name], g[name], m[name], v[name], step) for name in p}
    return tuple({name: new[name][i] for name in new} for i in range(3))


# ---- forward, for autodiff ----


def rows_forward(unroll):
    def forward(p, x):
        def layer(z, parameters):
            W, b = parameters
            return z + SCALE * jnp.tanh(z @ W + b), None

        z, _ = lax.scan(layer, x @ p["We"] + p["be"], (p["W"], p["b"]), unroll=unroll)
        return z @ p["Wh"] + p["bh"]

    return forward


def columns_forward(unroll):
    """The chain's weights lie as [out][in] here."""

    def forward(p, x):
        def layer(z, parameters):
            W, b = parameters
            return z + SCALE * jnp.tanh(W @ z + b[:, None]), None

        z, _ = lax.scan(layer, (x @ p["We"] + p["be"]).T, (p["W"], p["b"]), unroll=unroll)
        return z.T @ p["Wh"] + p["bh"]

    return forward


def by_autodiff(forward):
    return jax.value_and_grad(lambda p, x, labels: cross_entropy(forward(p, x), labels))


# ---- hand-written backward ----


def head(p, z, labels):
    """Loss, d loss / d z, and the head's gradients."""
    loss, back = jax.vjp(lambda Wh, bh, z: cross_entropy(z @ Wh + bh, labels), p["Wh"], p["bh"], z)
    dWh, dbh, dz = back(jnp.ones_like(loss))
    return loss, dz, {"Wh": dWh, "bh": dbh}


def encoder_gradients(x, d):
    return {"We": x.T @ d, "be": d.sum(0)}


def rows_states(p, x, unroll=1):
    def layer(z, parameters):
        W, b = parameters
        t = jnp.tanh(z @ W + b)
        return z + SCALE * t, (z, t)

    return lax.scan(layer, x @ p["We"] + p["be"], (p["W"], p["b"]), unroll=unroll)


def hand_written(unroll):
    def gradients(p, x, labels):
        z, (states, tanhs) = rows_states(p, x, unroll)
        loss, d, g = head(p, z, labels)

        def layer(d, saved):
            W, z, t = saved
            e = SCALE * d * (1 - t * t)
            return d + e @ W.T, (z.T @ e, e.sum(0))

        d, (dW, db) = lax.scan(layer, d, (p["W"], states, tanhs), reverse=True, unroll=unroll)
        return loss, {**g, **encoder_gradients(x, d), "W": dW, "b": db}

    return gradients


def hand_written_batched(p, x, labels):
    """The weights' gradients in one batched product after the scan."""
    z, (states, tanhs) = rows_states(p, x)
    loss, d, g = head(p, z, labels)

    def layer(d, saved):
        W, t = saved
        e = SCALE * d * (1 - t * t)
        return d + e @ W.T, e

    d, deltas = lax.scan(layer, d, (p["W"], tanhs), reverse=True)
    return loss, {**g, **encoder_gradients(x, d), "W": jnp.einsum("lbi,lbo->lio", states, deltas), "b": deltas.sum(1)}


def hand_written_transposes(p, x, labels):
    """Weights and states are transposed beforehand, so that no product needs to."""
    transposed = p["W"].swapaxes(1, 2)

    def down(z, parameters):
        W, b = parameters
        t = jnp.tanh(z @ W + b)
        return z + SCALE * t, (z.T, t)

    z, (states, tanhs) = lax.scan(down, x @ p["We"] + p["be"], (p["W"], p["b"]))
    loss, d, g = head(p, z, labels)

    def up(d, saved):
        Wt, zt, t = saved
        e = SCALE * d * (1 - t * t)
        return d + e @ Wt, (zt @ e, e.sum(0))

    d, (dW, db) = lax.scan(up, d, (transposed, states, tanhs), reverse=True)
    return loss, {**g, **encoder_gradients(x, d), "W": dW, "b": db}


def hand_written_columns(p, x, labels):
    def down(z, parameters):
        W, b = parameters
        t = jnp.tanh(W @ z + b[:, None])
        return z + SCALE * t, (z, t)

    z, (states, tanhs) = lax.scan(down, (x @ p["We"] + p["be"]).T, (p["W"], p["b"]))
    loss, d, g = head(p, z.T, labels)

    def up(d, saved):
        W, z, t = saved
        e = SCALE * d * (1 - t * t)
        return d + W.T @ e, (e @ z.T, e.sum(1))

    d, (dW, db) = lax.scan(up, d.T, (p["W"], states, tanhs), reverse=True)
    return loss, {**g, **encoder_gradients(x, d.T), "W": dW, "b": db}


# ---- training steps ----


def start(transposed):
    p = {name: jnp.asarray(value) for name, value in NUMBERS.items()}
    if transposed:
        p["W"] = p["W"].swapaxes(1, 2)
    zeros = {name: jnp.zeros_like(value) for name, value in p.items()}
    return p, zeros, {name: jnp.zeros_like(value) for name, value in p.items()}


def stepper(function, state, x, labels):
    """step() over function(p, m, v, count, x, labels) -> p, m, v, loss, whose first three arguments are donated."""
    memory = {"state": state, "count": 0}

    def step():
        memory["count"] += 1
        *memory["state"], loss = function(*memory["state"], jnp.float32(memory["count"]), x, labels)
        jax.block_until_ready(memory["state"])
        return jnp.ravel(loss)[0]

    return step


def training(gradients, transposed=False):
    def function(p, m, v, count, x, labels):
        loss, g = gradients(p, x, labels)
        return *update(p, g, m, v, count), loss

    jitted = jax.jit(function, donate_argnums=(0, 1, 2))
    return stepper(jitted, start(transposed), jnp.asarray(X), jnp.asarray(LABELS))


def updating_inside(p, m, v, count, x, labels):
    """Hand-written backward that updates a layer as soon as its gradient is there."""
    z, (states, tanhs) = rows_states(p, x)
    loss, d, g = head(p, z, labels)

    def layer(d, saved):
        (W, b), z, t, (mW, mb), (vW, vb) = saved
        e = SCALE * d * (1 - t * t)
        return d + e @ W.T, (adamw(W, z.T @ e, mW, vW, count), adamw(b, e.sum(0), mb, vb, count))

    chain = [(q["W"], q["b"]) for q in (p, m, v)]
    d, new = lax.scan(layer, d, (chain[0], states, tanhs, chain[1], chain[2]), reverse=True)
    g = {**g, **encoder_gradients(x, d)}
    ends = [{name: q[name] for name in g} for q in (p, m, v)]
    ends = update(ends[0], g, ends[1], ends[2], count)
    return *({**ends[i], "W": new[0][i], "b": new[1][i]} for i in range(3)), loss


def training_inside():
    return stepper(jax.jit(updating_inside, donate_argnums=(0, 1, 2)), start(False), jnp.asarray(X), jnp.asarray(LABELS))


def split_batch(gradients):
    """The batch in equal parts, one a device (a thread each); gradients are averaged, every device updates its copy."""
    devices = options.threads

    def function(p, m, v, count, x, labels):
        loss, g = lax.pmean(gradients(p, x, labels), "part")
        return *update(p, g, m, v, count), loss

    def copies(tree):
        return jax.tree.map(lambda a: jnp.stack([a] * devices), tree)

    jitted = jax.pmap(function, "part", in_axes=(0, 0, 0, None, 0, 0), donate_argnums=(0, 1, 2))
    x, labels = X.reshape(devices, BATCH // devices, -1), LABELS.reshape(devices, -1)
    return stepper(jitted, tuple(copies(q) for q in start(False)), x, labels)


VARIANTS = {
    "rows": (True, lambda: training(by_autodiff(rows_forward(1)))),
    "rows unroll 8": (True, lambda: training(by_autodiff(rows_forward(8)))),
    "columns": (True, lambda: training(by_autodiff(columns_forward(1)), True)),
    "columns unroll 8": (True, lambda: training(by_autodiff(columns_forward(8)), True)),
    "hand-written backward": (False, lambda: training(hand_written(1))),
    "hand-written backward unroll 8": (False, lambda: training(hand_written(8))),
    "hand-written backward gradients batched": (False, lambda: training(hand_written_batched)),
    "hand-written backward transposes stored": (False, lambda: training(hand_written_transposes)),
    "hand-written backward columns": (False, lambda: training(hand_written_columns, True)),
    "hand-written backward updating inside": (False, training_inside),
}
if options.threads > 1 and BATCH % options.threads == 0:
    VARIANTS["rows batch split"] = (True, lambda: split_batch(by_autodiff(rows_forward(1))))
    VARIANTS["hand-written backward batch split"] = (False, lambda: split_batch(hand_written(1)))

common.run(options, "jax", jax.__version__, common.wanted(options, VARIANTS))
