/* Interprets any bytes as calls of the public interface: graphs of every op with any operands,
 * plans, sessions, and their calls in any order, with and without enough memory. Each call must
 * succeed or be refused with a message. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "weft/layer.h"
#include "weft/ops.h"
#include "weft/session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VALUES = 24, SESSIONS = 2, MOST_CALLS = 40, MOST_BYTES = 1 << 20 };

typedef struct state {
    const uint8_t *at, *end;
    weft_graph *graph;
    weft_value values[VALUES];
    int count, names, depth;
} state;

static void must(int condition) {
    if (!condition) abort();
}

static void refused_with_a_message(weft_status status) {
    must(status >= 0 || *weft_error_message());
}

/* ---- arguments ---- */

static unsigned byte(state *s) {
    return s->at < s->end ? *s->at++ : 0;
}
static unsigned below(state *s, unsigned most) {
    return byte(s) % most;
}
static bool once_in(state *s, unsigned times) {
    return below(s, times) == times - 1;
}

/* A size: nearly always a small one. */
static int64_t length(state *s) {
    static const int64_t odd[] = {0, -1, INT64_MIN, INT64_MAX, (int64_t)1 << 31, (int64_t)1 << 33};
    unsigned b = byte(s);
    return b < 248 ? 1 + b % 6 : odd[b % 6];
}

static int small(state *s) {
    static const int odd[] = {-1, 8, 100, INT32_MIN, INT32_MAX};
    unsigned b = byte(s);
    return b < 240 ? (int)(b % 4) : odd[b % 5];
}

/* An axis that may be counted from the last one. */
static int last_or(state *s) {
    return once_in(s, 2) ? -1 : small(s);
}

static double number(state *s) {
    static const double odd[] = {0.0, -1.0, 1e300, 1e-300, -0.5, 1.0, 2.0, 0.9};
    unsigned b = byte(s);
    return b < 128 ? 0.1 : b == 255 ? (double)NAN : b == 254 ? (double)INFINITY : odd[b % 8];
}

static weft_dtype dtype(state *s) {
    unsigned b = byte(s);
    return b < 160 ? WEFT_F32 : (weft_dtype)(b % (WEFT_DTYPES + 1));
}

static weft_desc desc(state *s) {
    int64_t shape[WEFT_MAX_RANK];
    int rank = (int)(byte(s) % 5);
    for (int i = 0; i < rank; i++) shape[i] = length(s);
    return weft_desc_of(dtype(s), rank, shape);
}

static weft_init init(state *s) {
    return (weft_init){(weft_init_kind)below(s, 5), number(s)};
}

static weft_value value(state *s) {
    unsigned b = byte(s);
    if (b == 255) return WEFT_NO_VALUE;
    if (b == 254) return (weft_value){1000};
    if (b == 253) return (weft_value){INT32_MIN};
    return s->count ? s->values[(unsigned)s->count - 1 - b % (unsigned)s->count] : WEFT_NO_VALUE;
}

static void keep(state *s, weft_value v) {
    if (v.id >= 0 && s->count < VALUES) s->values[s->count++] = v;
}

static const char *fresh(state *s, char text[16]) {
    static const char *const odd[] = {"", "p0", ".", "a.b", "\n", "%s%n", "grad:p0", "loss"};
    unsigned b = byte(s);
    if (b >= 232) return odd[b % 8];
    (void)snprintf(text, 16, "p%d", s->names++);
    return text;
}

/* ---- the graph ---- */

static void sizes(state *s, int64_t *out, int count) {
    for (int i = 0; i < count; i++) out[i] = once_in(s, 3) ? length(s) : 1;
}

static void convolve(state *s, bool three) {
    weft_conv_options o = weft_conv_defaults();
    weft_value x = value(s), weight = value(s), bias = once_in(s, 2) ? value(s) : WEFT_NO_VALUE;
    sizes(s, o.stride, 3);
    sizes(s, o.dilation, 3);
    for (int i = 0; i < 3; i++) o.padding[i] = once_in(s, 3) ? length(s) : 0;
    if (once_in(s, 4)) o.groups = length(s);
    keep(s, three ? weft_conv3d(s->graph, x, weight, bias, &o)
                  : weft_conv2d(s->graph, x, weight, bias, &o));
}

static void pool(state *s, bool most) {
    int64_t kernel[2], stride[2], padding[2] = {0, 0};
    sizes(s, kernel, 2);
    sizes(s, stride, 2);
    if (once_in(s, 3)) sizes(s, padding, 2);
    weft_value x = value(s);
    keep(s, most ? weft_max_pool2d(s->graph, x, kernel, stride, padding)
                 : weft_avg_pool2d(s->graph, x, kernel, stride, padding));
}

static void attend(state *s) {
    weft_attention_options o = weft_attention_defaults();
    o.causal = once_in(s, 2);
    o.window = once_in(s, 4) ? length(s) : 0;
    o.scale = once_in(s, 4) ? number(s) : 0;
    o.dropout = once_in(s, 4) ? number(s) : 0;
    if (once_in(s, 4)) o.mask = value(s);
    if (once_in(s, 4)) o.position = value(s);
    weft_value q = value(s), k = once_in(s, 2) ? value(s) : q, v = once_in(s, 2) ? value(s) : k;
    keep(s, weft_attention(s->graph, q, k, v, &o));
}

static void route(state *s) {
    weft_routing r;
    weft_value x = value(s);
    weft_value weight = weft_moe_route(s->graph, weft_softmax(s->graph, value(s), -1), length(s),
                                       once_in(s, 2) ? 0 : length(s), &r);
    weft_value slots = weft_moe_dispatch(s->graph, x, &r);
    weft_value y = weft_moe_linear(s->graph, slots, value(s), once_in(s, 2), &r);
    keep(s, weight);
    keep(s, weft_moe_combine(s->graph, once_in(s, 2) ? y : slots, &r, weight));
}

static void one_operand(state *s) {
    static weft_value (*const ops[])(weft_graph *, weft_value) = {
        weft_neg,     weft_exp,  weft_log,  weft_sqrt,     weft_rsqrt, weft_tanh,
        weft_sigmoid, weft_relu, weft_gelu, weft_gelu_erf, weft_silu};
    keep(s, ops[below(s, sizeof ops / sizeof *ops)](s->graph, value(s)));
}

static void two_operands(state *s) {
    static weft_value (*const ops[])(weft_graph *, weft_value, weft_value) = {
        weft_add, weft_sub, weft_mul, weft_div, weft_maximum, weft_minimum, weft_pow, weft_mse};
    weft_value a = value(s), b = value(s);
    keep(s, ops[below(s, sizeof ops / sizeof *ops)](s->graph, a, b));
}

static void reduce(state *s) {
    static weft_value (*const ops[])(weft_graph *, weft_value, int, const int *,
                                     bool) = {weft_sum, weft_mean, weft_max};
    int axes[2] = {small(s), small(s)};
    weft_value x = value(s);
    int count = (int)below(s, 3);
    keep(s, ops[below(s, 3)](s->graph, x, count, axes, once_in(s, 2)));
}

static void move(state *s) {
    weft_graph *g = s->graph;
    int64_t shape[4], after[4];
    int order[4], rank = (int)below(s, 5);
    weft_value x = value(s), out[16];
    for (int i = 0; i < 4; i++) order[i] = small(s);
    switch (below(s, 12)) {
    case 0:
        for (int i = 0; i < 4; i++) shape[i] = once_in(s, 5) ? -1 : length(s);
        keep(s, weft_reshape(g, x, rank, shape));
        return;
    case 1:
        keep(s, weft_transpose(g, x, rank, order));
        return;
    case 2:
        keep(s, weft_slice(g, x, order[0], length(s) % 5, length(s)));
        return;
    case 3:
        for (int i = 0; i < rank; i++) out[i] = value(s);
        keep(s, weft_concat(g, rank, out, order[0]));
        return;
    case 4: {
        int parts = small(s);
        weft_split(g, x, order[0], parts, out);
        if (parts > 0 && parts <= 16) keep(s, out[0]);
        return;
    }
    case 5:
        for (int i = 0; i < 4; i++) shape[i] = once_in(s, 3) ? length(s) : 0;
        for (int i = 0; i < 4; i++) after[i] = once_in(s, 3) ? length(s) : 0;
        keep(s, weft_pad(g, x, shape, after, number(s)));
        return;
    case 6:
        keep(s, weft_take(g, x, value(s), order[0]));
        return;
    case 7: {
        weft_value index = value(s);
        keep(s, weft_scatter_add(g, x, index, value(s), order[0]));
        return;
    }
    case 8:
        keep(s, weft_one_hot(g, x, length(s), dtype(s)));
        return;
    case 9: {
        weft_value index = WEFT_NO_VALUE;
        keep(s, weft_top_k(g, x, length(s), &index));
        keep(s, index);
        return;
    }
    case 10:
        keep(s, weft_argmax(g, x, order[0]));
        return;
    default:
        keep(s, weft_cast(g, x, dtype(s)));
        return;
    }
}

static void normalise(state *s) {
    weft_graph *g = s->graph;
    weft_value x = value(s), gamma = value(s), beta = once_in(s, 2) ? value(s) : WEFT_NO_VALUE;
    switch (below(s, 3)) {
    case 0:
        keep(s, weft_layer_norm(g, x, gamma, beta, number(s)));
        return;
    case 1:
        keep(s, weft_rms_norm(g, x, gamma, number(s)));
        return;
    default: {
        weft_value mean = value(s), var = value(s);
        keep(s, weft_batch_norm(g, x, gamma, beta, mean, var, number(s), number(s), once_in(s, 2)));
    }
    }
}

static void communicate(state *s) {
    weft_graph *g = s->graph;
    weft_ranks group = {small(s), small(s)};
    weft_value x = value(s);
    int from[4];
    for (int i = 0; i < 4; i++) from[i] = small(s);
    if (group.count > 4) group.count = 4; /* as many as `from` has */
    switch (below(s, 7)) {
    case 0:
        keep(s, weft_graph_all_reduce(g, x, group, (weft_reduction)below(s, 5)));
        return;
    case 1:
        keep(s, weft_graph_all_gather(g, x, group));
        return;
    case 2:
        keep(s, weft_graph_reduce_scatter(g, x, group));
        return;
    case 3:
        keep(s, weft_graph_all_to_all(g, x, group, small(s), small(s)));
        return;
    case 4:
        keep(s, weft_graph_broadcast(g, x, group, small(s)));
        return;
    case 5:
        keep(s, weft_graph_permute(g, x, group, from));
        return;
    default:
        keep(s, weft_graph_send(g, x, group, small(s), small(s)));
        return;
    }
}

static void other(state *s) {
    weft_graph *g = s->graph;
    weft_value a = value(s), b = value(s), c = value(s);
    switch (below(s, 14)) {
    case 0:
        keep(s, weft_matmul(g, a, b, once_in(s, 2), once_in(s, 2)));
        return;
    case 1:
        keep(s, weft_linear(g, a, b, c, once_in(s, 2)));
        return;
    case 2:
        keep(s, weft_compare(g, a, b, (weft_relation)below(s, 7)));
        return;
    case 3:
        keep(s, weft_where(g, a, b, c));
        return;
    case 4:
        keep(s, weft_clip(g, a, number(s), number(s)));
        return;
    case 5:
        keep(s, weft_scale(g, a, number(s)));
        return;
    case 6:
        keep(s, weft_dropout(g, a, number(s)));
        return;
    case 7:
        keep(s, weft_constant(g, desc(s), number(s)));
        return;
    case 8:
        keep(s, weft_softmax(g, a, last_or(s)));
        return;
    case 9:
        keep(s, weft_log_softmax(g, a, last_or(s)));
        return;
    case 10:
        keep(s, weft_cross_entropy(g, a, b, length(s), once_in(s, 3) ? number(s) : 0));
        return;
    case 11:
        keep(s, weft_embedding(g, a, b, dtype(s)));
        return;
    case 12:
        keep(s, weft_rope(g, a, number(s), (weft_rope_scaling){0}, c));
        return;
    default:
        keep(s, weft_cache_write(g, a, b, c));
        return;
    }
}

static void structure(state *s) {
    char text[16];
    weft_graph *g = s->graph;
    switch (below(s, 7)) {
    case 0:
        weft_cell_begin(g, "%s", fresh(s, text));
        s->depth++;
        return;
    case 1:
        keep(s, weft_cell_end(g, value(s)));
        s->depth--;
        return;
    case 2: {
        weft_value state = weft_state(g, fresh(s, text), desc(s), init(s));
        keep(s, state);
        weft_state_update(g, once_in(s, 4) ? value(s) : state, value(s));
        return;
    }
    case 3:
        weft_output(g, fresh(s, text), value(s));
        return;
    case 4: {
        weft_dense_options o =
            WEFT_STRUCT(weft_dense_options, .transposed = once_in(s, 2), .no_bias = once_in(s, 2));
        keep(s, weft_dense(g, once_in(s, 2) ? NULL : fresh(s, text), value(s), length(s), &o));
        return;
    }
    case 5:
        keep(s, weft_input(g, fresh(s, text), desc(s)));
        return;
    default:
        keep(s, weft_param(g, fresh(s, text), desc(s), init(s)));
        return;
    }
}

static void call(state *s) {
    switch (below(s, 12)) {
    case 0:
        one_operand(s);
        return;
    case 1:
        two_operands(s);
        return;
    case 2:
        reduce(s);
        return;
    case 3:
        move(s);
        return;
    case 4:
        normalise(s);
        return;
    case 5:
        convolve(s, once_in(s, 3));
        return;
    case 6:
        pool(s, once_in(s, 2));
        return;
    case 7:
        attend(s);
        return;
    case 8:
        once_in(s, 3) ? route(s) : once_in(s, 3) ? communicate(s) : other(s);
        return;
    case 9:
    case 10:
        structure(s);
        return;
    default:
        other(s);
    }
}

static bool begin(state *s) {
    weft_graph_destroy(s->graph);
    s->graph = NULL;
    s->count = s->names = s->depth = 0;
    if (weft_graph_create(&s->graph) < 0) return false;
    keep(s, weft_input(s->graph, "x", WEFT_DESC(WEFT_F32, 4, 2)));
    keep(s, weft_param(s->graph, "w", WEFT_DESC(WEFT_F32, 2, 2), (weft_init){WEFT_INIT_NORMAL, 1}));
    return true;
}

/* A graph fails with its first bad call. The good calls before it are repeated in a new graph. */
static void build(state *s) {
    struct {
        const uint8_t *at, *end;
    } good[MOST_CALLS];
    int count = 0, calls = 2 + (int)below(s, MOST_CALLS - 2);
    if (!begin(s)) return;
    for (int i = 0; i < calls && s->at < s->end; i++) {
        good[count].at = s->at;
        call(s);
        good[count].end = s->at;
        if (weft_graph_status(s->graph) >= 0) {
            count++;
            continue;
        }
        must(*weft_graph_message(s->graph));
        if (!begin(s)) return;
        const uint8_t *at = s->at, *end = s->end;
        for (int k = 0; k < count; k++) {
            s->at = good[k].at;
            s->end = good[k].end;
            call(s);
        }
        s->at = at;
        s->end = end;
        must(weft_graph_status(s->graph) >= 0);
    }
    weft_value last = s->values[s->count - 1];
    for (; s->depth > 0; s->depth--) last = weft_cell_end(s->graph, last);
    if (!once_in(s, 8)) last = weft_sum(s->graph, weft_cast(s->graph, last, WEFT_F32), 0, NULL, 0);
    weft_loss(s->graph, last);
    must(weft_graph_status(s->graph) >= 0 || *weft_graph_message(s->graph));
}

/* ---- plans ---- */

static void say(state *s, weft_plan *p) {
    static const char *const axes[] = {"dp", "tp", "sp", "", "dp"};
    static const char *const matches[] = {"*", "*:linear", "p*", "**", "", "[", "x"};
    static const char *const splits[] = {"n0=tp", "m0=dp",         "m=dp+tp", "((2,1),(1,2))",
                                         "k=tp",  "((1,2),(2,1))", "=",       "n0=dp k=tp"};
    static const char *const layouts[] = {"[dp, -]", "[-, tp]", "[dp+tp, -]", "[tp]", "[", "[-]"};
    int index[2] = {small(s), small(s)};
    weft_status status;
    switch (below(s, 14)) {
    case 0:
        status = weft_plan_axis(p, axes[below(s, 5)], small(s));
        break;
    case 1:
        status = weft_plan_mode(p, (weft_parallel_mode)below(s, 4));
        break;
    case 2:
        status = weft_plan_split_op(p, matches[below(s, 7)], splits[below(s, 8)]);
        break;
    case 3:
        status = weft_plan_split_tensor(p, matches[below(s, 7)], layouts[below(s, 6)]);
        break;
    case 4:
        status = once_in(s, 3) ? weft_plan_master(p, (weft_tier)below(s, 4))
                               : weft_plan_optimizer(p, small(s), length(s), small(s));
        break;
    case 5:
        status =
            weft_plan_pipeline(p, small(s), small(s), (weft_schedule)below(s, 5), 1 + small(s) % 9);
        break;
    case 6:
        status = weft_plan_stage(p, matches[below(s, 7)], small(s));
        break;
    case 7:
        status = weft_plan_accumulate(p, small(s));
        break;
    case 8:
        status = weft_plan_copies(p, small(s));
        break;
    case 9:
        status = weft_plan_recompute(p, (weft_recompute)below(s, 4), matches[below(s, 7)],
                                     once_in(s, 2));
        break;
    case 10:
        status = weft_plan_fusion(p, once_in(s, 4) ? "none" : "allreduce",
                                  (weft_fusion_mode)below(s, 5), length(s), 2, index);
        break;
    case 11:
        status = weft_plan_dataset(p, (weft_dataset)below(s, 3));
        break;
    case 12:
        status = weft_plan_offload(p, matches[below(s, 7)], (weft_offload)below(s, 2),
                                   (weft_tier)below(s, 4));
        if (status >= 0)
            status = weft_plan_cache(p, matches[below(s, 7)], (weft_offload)below(s, 2), length(s));
        break;
    case 13:
        status = weft_op_place(p, matches[below(s, 7)], once_in(s, 3) ? "rank" : "host");
        break;
    default:
        status = weft_plan_gradients_sum(p, once_in(s, 2));
        break;
    }
    refused_with_a_message(status);
}

static weft_plan *plan_of(state *s) {
    weft_plan *p = NULL;
    weft_status status = weft_plan_create(1 + (int)below(s, 4), &p);
    refused_with_a_message(status);
    if (status < 0) return NULL;
    for (unsigned i = below(s, 6); i-- > 0;) say(s, p);
    refused_with_a_message(weft_plan_check(p));
    return p;
}

/* ---- sessions ---- */

static void touch(state *s, weft_session *session, int program) {
    static unsigned char memory[MOST_BYTES];
    weft_tensor_info t = {.name = "none", .bytes = 4};
    weft_status status =
        weft_session_tensor(session, program, once_in(s, 8) ? small(s) : (int)below(s, 12), &t);
    refused_with_a_message(status);
    size_t bytes = once_in(s, 16) ? (size_t)byte(s) : (size_t)t.bytes;
    if (bytes > sizeof memory) return;
    if (once_in(s, 2)) memset(memory, once_in(s, 8) ? 0xff : 0, sizeof memory);
    switch (below(s, 4)) {
    case 0:
        status = weft_session_read(session, program, t.name, memory, bytes);
        break;
    case 1:
        status = weft_session_write(session, program, t.name, memory, bytes);
        break;
    case 2: {
        weft_session_part part;
        status = weft_session_local(session, program, t.name, &part);
        break;
    }
    default:
        status = weft_session_feed(session, program, t.name, memory, bytes);
        break;
    }
    refused_with_a_message(status);
}

static void feed_all(weft_session *session, int program) {
    static const unsigned char zeros[MOST_BYTES];
    for (int i = 0; i < weft_session_tensors(session, program); i++) {
        weft_tensor_info t;
        must(weft_session_tensor(session, program, i, &t) >= 0);
        if (t.role != WEFT_ROLE_INPUT || t.bytes > MOST_BYTES) continue;
        refused_with_a_message(weft_session_feed(session, program, t.name, zeros, (size_t)t.bytes));
    }
}

static void use(state *s, weft_session *session) {
    int program = once_in(s, 4) ? small(s) : 0, added;
    double x;
    weft_status status = WEFT_OK;
    if (!once_in(s, 4)) feed_all(session, program);
    switch (below(s, 9)) {
    case 0:
        status = weft_session_step(session, number(s), &x);
        break;
    case 1:
        status = weft_session_accumulate(session, &x);
        break;
    case 2:
        status = weft_session_update(session, number(s), &x);
        break;
    case 3:
        status = weft_session_forward(session, program, &x);
        break;
    case 4:
        status = weft_session_add(session, s->graph, &added);
        break;
    case 5:
        status = weft_session_check_replicas(session);
        break;
    case 6:
        status = weft_session_set_row(session, (int64_t)(byte(s) * UINT64_C(0x0101010101010101)));
        break;
    default:
        touch(s, session, program);
        break;
    }
    refused_with_a_message(status);
}

static void run(state *s) {
    weft_session_options o = weft_session_defaults();
    weft_plan *plan = once_in(s, 2) ? plan_of(s) : NULL;
    o.optimizer.kind = (weft_optimizer_kind)below(s, WEFT_OPTIMIZERS + 2);
    o.clip = once_in(s, 3) ? number(s) : 0;
    if (once_in(s, 3)) o.microbatches = small(s);
    o.keep_gradients = once_in(s, 3);
    o.recompute = once_in(s, 3);
    o.threads = once_in(s, 4) ? 2 : 1;
    if (once_in(s, 50)) o.threads = small(s);
    o.memory_bytes = 16 << 20;
    o.bf16 = WEFT_BF16_AS_F32;
    o.plan = plan;
    weft_session *session = NULL;
    weft_status status = weft_session_create(s->graph, &o, &session);
    refused_with_a_message(status);
    if (status >= 0)
        for (unsigned i = 1 + below(s, 12); i-- > 0;) use(s, session);
    weft_session_destroy(session);
    weft_plan_destroy(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    state s = {.at = data, .end = data + size};
    build(&s);
    for (int i = 0; i < SESSIONS && s.graph; i++) {
        if (once_in(&s, 4)) {
            int64_t nth = (int64_t)byte(&s) << below(&s, 6);
            wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, once_in(&s, 2), 0);
        }
        run(&s);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    }
    weft_graph_destroy(s.graph);
    return 0;
}
