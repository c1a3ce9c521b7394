/* Compiles a body into a routine: prepares kernels and places values.
 *
 * The root of a value decides its memory. A reshape shares the memory of its input, an in-place op
 * the memory of its operand. An elementwise kernel may take over the memory of an operand that it
 * reads last. If a root is a result of the body, kernels write it straight into the caller's
 * argument. The other roots are placed in the frame by lifetime. */
#include <string.h>

#include "comm/comm.h"
#include "compile/compiler.h"

static const int64_t MOST_BYTES = INT64_C(1) << 50; /* of one value */

weft_status wefti_compiler_array(wefti_compiler *c, size_t bytes, void *out) {
    void *p = wefti_arena_alloc(c->scratch, bytes ? bytes : 1);
    WEFT_REQUIRE(p, WEFT_E_NOMEM, "no memory to compile a cell");
    memcpy(out, &p, sizeof p);
    return WEFT_OK;
}

static bool communicates(const weft_node *n) {
    return n && n->op->flags & WEFTI_OP_COMM;
}

/* Prepares the kernel of a node, or in a dry build only estimates its workspace. *in_place: the
 * result may take the memory of this operand; -1: none. */
static weft_status ask_backend(const wefti_backend *backend, const weft_node *n,
                               const wefti_prepare *options, wefti_instruction *x, int *in_place) {
    if (options->dry) {
        wefti_estimate estimate;
        weft_status status = wefti_backend_estimate(backend, n, options, &estimate);
        if (status < 0) return status;
        x->workspace_bytes = estimate.workspace_bytes;
        x->kernel_bytes = estimate.bytes;
        *in_place = estimate.in_place;
        return WEFT_OK;
    }
    weft_status status = backend->prepare(backend, n, options, &x->kernel);
    if (status < 0) return status;
    x->workspace_bytes = x->kernel->workspace_bytes;
    x->kernel_bytes = x->kernel->bytes;
    *in_place = x->kernel->in_place;
    return WEFT_OK;
}

/* A transfer has no kernel: the executor carries it out. */
static weft_status prepare_node(wefti_compiler *c, const weft_node *n, uint32_t accumulate,
                                wefti_instruction *x, int *in_place) {
    wefti_prepare options = c->spec->prepare;
    *in_place = -1;
    if (communicates(n)) return accumulate ? WEFT_E_NO_IMPL : WEFT_OK;
    options.accumulate = accumulate;
    for (const wefti_backend *const *b = c->spec->backends; *b; b++) {
        options.behind = b + 1;
        weft_status status = ask_backend(*b, n, &options, x, in_place);
        if (status != WEFT_E_NO_IMPL) {
            if (status < 0) return wefti_prefix(status, "%s", n->op->name);
            return WEFT_OK;
        }
    }
    return WEFT_E_NO_IMPL;
}

static weft_status new_instruction(wefti_compiler *c, int ins, int outs, wefti_instruction **out) {
    wefti_routine *r = c->r;
    if (r->code_count == r->code_cap) {
        int32_t cap = r->code_cap ? r->code_cap * 2 : 32;
        wefti_instruction *bigger = wefti_realloc(r->code, (size_t)cap * sizeof *bigger);
        WEFT_REQUIRE(bigger, WEFT_E_NOMEM, "no memory for %d instructions", cap);
        r->code = bigger;
        r->code_cap = cap;
    }
    wefti_instruction *x = &r->code[r->code_count];
    memset(x, 0, sizeof *x);
    x->workspace = WEFTI_NO_REF;
    x->transfer = -1;
    x->in = wefti_calloc((size_t)(ins + outs), sizeof *x->in);
    WEFT_REQUIRE(x->in, WEFT_E_NOMEM, "no memory for an instruction");
    x->out = x->in + ins;
    r->code_count++;
    *out = x;
    return WEFT_OK;
}

/* The sum to which the kernel of node k may add its result `value` directly: no other node reads
 * either value in between. -1: none. */
static int32_t sum_of(const wefti_compiler *c, int64_t k, int32_t value) {
    const weft_body *b = c->body;
    int64_t at = -1;
    if (c->root[value] != value || c->place[value].arg != WEFTI_REF_NONE) return -1;
    for (int64_t o = 0; o < b->out_count; o++)
        if (wefti_compiler_root(c, b->out[o]) == value) return -1;
    for (int64_t j = k + 1; j < b->node_count; j++)
        for (int i = 0; i < b->nodes[j].inputs; i++) {
            if (b->nodes[j].in[i] < 0 || wefti_compiler_root(c, b->nodes[j].in[i]) != value)
                continue;
            if (at >= 0 || !wefti_compiler_adds(&b->nodes[j]) || i != 1) return -1;
            at = j;
        }
    if (at < 0) return -1;
    int32_t sum = b->nodes[at].in[0];
    if (b->values[sum].node >= k) return -1;
    for (int64_t j = k; j < at; j++)
        for (int i = 0; i < b->nodes[j].inputs; i++)
            if (b->nodes[j].in[i] >= 0 &&
                wefti_compiler_root(c, b->nodes[j].in[i]) == wefti_compiler_root(c, sum))
                return -1;
    return sum;
}

/* Emits an addition in place, unless the kernel of the term has already added it. */
static weft_status emit_sum(wefti_compiler *c, const weft_node *n) {
    wefti_instruction *x;
    if (wefti_compiler_root(c, n->in[1]) == wefti_compiler_root(c, n->in[0])) return WEFT_OK;
    WEFT_TRY(new_instruction(c, 1, 1, &x));
    x->bytes = weft_desc_bytes(wefti_out(n, 0));
    x->dtype = wefti_out(n, 0)->dtype;
    x->add = true;
    x->cost.bytes = 3.0 * (double)x->bytes;
    c->moves[c->r->code_count - 1] = (wefti_compiler_move){n->in[1], n->in[0]};
    return WEFT_OK;
}

/* If a kernel may overwrite an operand that no later node reads, the result takes over its
 * memory. */
static void take_over(wefti_compiler *c, const weft_node *n, int in_place, int32_t at,
                      const int32_t *final_use) {
    if (in_place < 0 || in_place >= n->inputs || n->in[in_place] < 0) return;
    int32_t from = wefti_compiler_root(c, n->in[in_place]), to = n->out[0];
    if (wefti_compiler_root(c, to) != to || c->place[to].arg != WEFTI_REF_NONE) return;
    if (c->place[from].arg != WEFTI_REF_NONE || final_use[from] != at) return;
    if (weft_desc_bytes(&c->body->values[from].desc) != weft_desc_bytes(&c->body->values[to].desc))
        return;
    int operands = 0;
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0 && wefti_compiler_root(c, n->in[i]) == from) operands++;
    if (operands == 1) c->root[to] = from;
}

static weft_status emit_nodes(wefti_compiler *c, const bool *accumulate_root,
                              wefti_disposition *end) {
    const weft_body *b = c->body;
    int32_t *final_use; /* per root, in node numbers */
    WEFT_TRY(wefti_compiler_array(c, (size_t)b->value_count * sizeof(int32_t), &final_use));
    for (int64_t v = 0; v < b->value_count; v++) final_use[v] = -1;
    for (int64_t k = 0; k < b->node_count; k++)
        for (int i = 0; i < b->nodes[k].inputs; i++)
            if (b->nodes[k].in[i] >= 0)
                final_use[wefti_compiler_root(c, b->nodes[k].in[i])] = (int32_t)k;
    for (int64_t o = 0; o < b->out_count; o++)
        final_use[wefti_compiler_root(c, b->out[o])] = INT32_MAX;
    for (int64_t k = 0; k < b->node_count; k++) {
        const weft_node *n = &b->nodes[k];
        if (n->op->flags & WEFTI_OP_RESHAPE) continue;
        if (wefti_compiler_adds(n)) {
            WEFT_TRY(emit_sum(c, n));
            continue;
        }
        uint32_t accumulate = 0;
        int32_t sum[WEFTI_MAX_OUT];
        for (int o = 0; o < n->outputs; o++) {
            sum[o] = c->sums ? sum_of(c, k, n->out[o]) : -1;
            if (accumulate_root[n->out[o]] || sum[o] >= 0) accumulate |= 1u << o;
        }
        wefti_instruction *x;
        WEFT_TRY(new_instruction(c, n->inputs, n->outputs, &x));
        x->node = n;
        int in_place;
        weft_status status = prepare_node(c, n, accumulate, x, &in_place);
        if (status == WEFT_E_NO_IMPL && accumulate) {
            /* The kernel cannot accumulate: its results go to the frame and are added later. */
            for (int o = 0; o < n->outputs; o++) {
                sum[o] = -1;
                if (!accumulate_root[n->out[o]]) continue;
                c->place[n->out[o]] = WEFTI_NO_REF;
                for (int64_t e = 0; e < b->out_count; e++)
                    if (wefti_compiler_root(c, b->out[e]) == n->out[o]) end[e] = WEFTI_RESULT_ADDED;
            }
            status = prepare_node(c, n, 0, x, &in_place);
        }
        if (status < 0) {
            if (status == WEFT_E_NO_IMPL)
                WEFT_FAIL(WEFT_E_NO_IMPL, "no kernel runs '%s' on %s", n->op->name,
                          n->inputs ? wefti_desc_text(wefti_in(n, 0)).text : "no input");
            return status;
        }
        for (int o = 0; o < n->outputs; o++)
            if (sum[o] >= 0) c->root[n->out[o]] = wefti_compiler_root(c, sum[o]);
        wefti_node_cost(n, &x->cost);
        if (communicates(n)) {
            x->transfer = (int32_t)wefti_attr_int(n, WEFTI_AT_index);
            continue;
        }
        take_over(c, n, in_place, (int32_t)k, final_use);
        if (n->outputs && wefti_compiler_root(c, n->out[0]) != n->out[0])
            final_use[wefti_compiler_root(c, n->out[0])] = final_use[n->out[0]];
    }
    return WEFT_OK;
}

static weft_status emit_endings(wefti_compiler *c, const wefti_disposition *end) {
    const weft_body *b = c->body;
    for (int64_t o = 0; o < b->out_count; o++) {
        if (end[o] != WEFTI_RESULT_COPIED && end[o] != WEFTI_RESULT_ADDED) continue;
        wefti_instruction *x;
        WEFT_TRY(new_instruction(c, 1, 1, &x));
        x->bytes = weft_desc_bytes(&b->values[b->out[o]].desc);
        x->dtype = b->values[b->out[o]].desc.dtype;
        x->add = end[o] == WEFTI_RESULT_ADDED;
        x->cost.bytes = (double)x->bytes * (x->add ? 3.0 : 2.0);
        int64_t saved = c->spec->out_saved ? c->spec->out_saved[o] : -1;
        x->out[0] = saved >= 0 ? (wefti_ref){c->r->saved_arg, saved}
                               : (wefti_ref){c->r->inputs + (int32_t)o, 0};
        c->moves[c->r->code_count - 1] = (wefti_compiler_move){b->out[o], -1};
    }
    return WEFT_OK;
}

/* Whether transfer k may be posted while the transfers from `begin` on are in flight. It must not
 * read their results, and no endpoint may have more than WEFTI_COMM_DEPTH posts. */
static bool joins(const wefti_compiler *c, int32_t begin, int32_t k) {
    const wefti_instruction *x = &c->r->code[k];
    int posts = 1;
    if (!communicates(x->node)) return false;
    for (int32_t j = begin; j < k; j++) {
        const weft_node *before = c->r->code[j].node;
        posts += c->r->code[j].transfer == x->transfer;
        for (int i = 0; i < x->node->inputs; i++)
            for (int o = 0; o < before->outputs; o++)
                if (x->node->in[i] >= 0 && wefti_compiler_root(c, x->node->in[i]) ==
                                               wefti_compiler_root(c, before->out[o]))
                    return false;
    }
    return posts <= WEFTI_COMM_DEPTH;
}

static void join_transfers(wefti_compiler *c) {
    for (int32_t begin = 0; begin < c->r->code_count; begin++) {
        if (!communicates(c->r->code[begin].node)) continue;
        int32_t k = begin;
        while (k + 1 < c->r->code_count && joins(c, begin, k + 1)) c->r->code[k++].joined = true;
        begin = k;
    }
}

static weft_status compile(wefti_compiler *c) {
    const weft_body *b = c->body;
    size_t values = (size_t)b->value_count + 1, outs = (size_t)b->out_count + 1;
    bool *accumulate_root;
    wefti_disposition *end;
    WEFT_TRY(wefti_compiler_array(c, values * sizeof(int32_t), &c->root));
    WEFT_TRY(wefti_compiler_array(c, values * sizeof(wefti_ref), &c->place));
    WEFT_TRY(wefti_compiler_array(c, values * sizeof(bool), &c->in_place_chain));
    WEFT_TRY(wefti_compiler_array(c, values * sizeof(bool), &c->overwritten));
    WEFT_TRY(wefti_compiler_array(c, values * sizeof(int32_t), &c->first));
    WEFT_TRY(wefti_compiler_array(c, values * sizeof(int32_t), &c->last));
    WEFT_TRY(wefti_compiler_array(c, values * sizeof(bool), &accumulate_root));
    WEFT_TRY(wefti_compiler_array(c, outs * sizeof(wefti_disposition), &end));
    WEFT_TRY(wefti_compiler_array(c, ((size_t)b->node_count + outs) * sizeof *c->moves, &c->moves));
    for (size_t v = 0; v < values; v++) c->place[v] = WEFTI_NO_REF;
    for (int64_t k = 0; k < b->node_count; k++) c->sums |= wefti_compiler_adds(&b->nodes[k]);
    WEFT_TRY(wefti_compiler_find_aliases(c));
    wefti_compiler_place_inputs(c);
    WEFT_TRY(wefti_compiler_place_outputs(c, end, accumulate_root));
    WEFT_TRY(emit_nodes(c, accumulate_root, end));
    WEFT_TRY(emit_endings(c, end));
    join_transfers(c);
    return wefti_compiler_place_frame(c);
}

/* Kernels add up the sizes of their operands: bound each size so that no sum overflows. */
static weft_status check_sizes(const weft_body *b) {
    for (int64_t v = 0; v < b->value_count; v++)
        WEFT_REQUIRE(weft_desc_bytes(&b->values[v].desc) <= MOST_BYTES, WEFT_E_NOMEM,
                     "%s: %s is more than the memory of any device", b->name,
                     wefti_desc_text(&b->values[v].desc).text);
    return WEFT_OK;
}

weft_status wefti_routine_compile(const wefti_routine_spec *spec, wefti_routine **out) {
    const weft_body *b = spec->body;
    wefti_routine *r;
    WEFT_TRY(check_sizes(b));
    WEFT_NEW(r, wefti_routine);
    wefti_compiler c = {.spec = spec, .body = b, .r = r};
    weft_status status;
    r->body = spec->body;
    r->inputs = (int32_t)b->in_count;
    r->outputs = (int32_t)b->out_count;
    while (r->outputs > 0 && spec->out_saved && spec->out_saved[r->outputs - 1] >= 0) r->outputs--;
    r->args = r->inputs + r->outputs;
    r->saved_bytes = spec->saved_bytes;
    r->saved_arg = spec->saved_bytes > 0 ? r->args++ : -1;
    r->alias = wefti_calloc((size_t)r->outputs + 1, sizeof *r->alias);
    status = r->alias ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a routine");
    if (status < 0) goto err_routine;
    WEFT_TRY_OR(err_routine, status, wefti_arena_create(&c.scratch));
    WEFT_TRY_OR(err_scratch, status, compile(&c));
    wefti_arena_destroy(c.scratch);
    *out = r;
    return WEFT_OK;
err_scratch:
    wefti_arena_destroy(c.scratch);
err_routine:
    wefti_routine_destroy(r);
    return status;
}

void wefti_routine_destroy(wefti_routine *r) {
    if (!r) return;
    for (int32_t k = 0; k < r->code_count; k++) {
        wefti_kernel_destroy(r->code[k].kernel);
        wefti_free(r->code[k].in);
    }
    wefti_free(r->code);
    wefti_free(r->alias);
    wefti_free(r);
}

int64_t wefti_routine_bytes(const wefti_routine *r) {
    int64_t bytes = (int64_t)sizeof *r + wefti_array_bytes(r->code, r->code_cap, sizeof *r->code) +
                    wefti_array_bytes(r->alias, (int64_t)r->outputs + 1, sizeof *r->alias);
    for (int32_t k = 0; k < r->code_count; k++) {
        const wefti_instruction *x = &r->code[k];
        const int operands = x->node ? x->node->inputs + x->node->outputs : 2;
        bytes += x->kernel_bytes + wefti_array_bytes(x->in, operands, sizeof *x->in);
    }
    return bytes;
}
