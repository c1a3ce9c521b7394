/* Compiles a body into a routine: prepares kernels and places values.
 *
 * The root of a value decides its memory. A reshape shares the memory of its input, an in-place op
 * the memory of its operand. An elementwise kernel may take over the memory of an operand that it
 * reads last. If a root is a result of the body, kernels write it straight into the caller's
 * argument. The other roots are placed in the frame by lifetime. */
#include <string.h>

#include "comm/comm.h"
#include "compile/routine.h"
#include "memory/place.h"

static const int64_t MOST_BYTES = INT64_C(1) << 50; /* of one value */

/* A copy or addition of one value to another. `to` -1: the instruction's destination is already
 * set. */
typedef struct move {
    int32_t from, to;
} move;

typedef struct compiler {
    const wefti_routine_spec *spec;
    const weft_body *body;
    wefti_routine *r;
    int32_t *root;         /* per value: the value that provides its memory */
    wefti_ref *place;      /* per root: its place; arg NONE until known */
    bool *in_place_chain;  /* per value: an in-place op lies between it and its root */
    bool *overwritten;     /* per value: an in-place op has replaced it */
    int32_t *first, *last; /* per root: instruction of definition and last use */
    move *moves;           /* per instruction without a node */
    bool sums;             /* some nodes add in place */
    wefti_arena *scratch;
} compiler;

static int32_t root_of(const compiler *c, int32_t value) {
    while (c->root[value] != value) value = c->root[value];
    return value;
}

static wefti_ref none(void) {
    return (wefti_ref){WEFTI_REF_NONE, 0};
}

static weft_status scratch_array(compiler *c, size_t bytes, void *out) {
    void *p = wefti_arena_alloc(c->scratch, bytes ? bytes : 1);
    WEFT_REQUIRE(p, WEFT_E_NOMEM, "no memory to compile a cell");
    memcpy(out, &p, sizeof p);
    return WEFT_OK;
}

static bool adds(const weft_node *n) {
    return n->op->flags & WEFTI_OP_ADDS;
}

/* Marks all values that share the memory which an in-place op overwrites. */
static void overwrite(compiler *c, int32_t root, int64_t node) {
    const weft_body *b = c->body;
    for (int64_t v = 0; v < b->value_count; v++)
        if (b->values[v].node < node && root_of(c, (int32_t)v) == root) c->overwritten[v] = true;
}

static weft_status still_there(const compiler *c, int32_t value, const char *reader) {
    WEFT_REQUIRE(value < 0 || !c->overwritten[value], WEFT_E_NO_IMPL,
                 "%s uses a value that was overwritten in place before: use the new value, or the "
                 "old one earlier",
                 reader);
    return WEFT_OK;
}

/* Finds the roots of reshapes and in-place ops. */
static weft_status find_aliases(compiler *c) {
    const weft_body *b = c->body;
    for (int64_t v = 0; v < b->value_count; v++) c->root[v] = (int32_t)v;
    for (int64_t k = 0; k < b->node_count; k++) {
        const weft_node *n = &b->nodes[k];
        for (int i = 0; i < n->inputs; i++) WEFT_TRY(still_there(c, n->in[i], n->op->name));
        if (n->op->flags & WEFTI_OP_RESHAPE) {
            c->root[n->out[0]] = root_of(c, n->in[0]);
            c->in_place_chain[n->out[0]] = c->in_place_chain[n->in[0]];
        }
        if (n->op->flags & WEFTI_OP_IN_PLACE)
            for (int o = 0; o < n->outputs; o++) {
                overwrite(c, root_of(c, n->in[o]), k);
                c->root[n->out[o]] = root_of(c, n->in[o]);
                c->in_place_chain[n->out[o]] = true;
            }
    }
    for (int64_t o = 0; o < b->out_count; o++)
        WEFT_TRY(still_there(c, b->out[o], "a result of the cell"));
    return WEFT_OK;
}

static void place_inputs(compiler *c) {
    const weft_body *b = c->body;
    for (int64_t i = 0; i < b->in_count; i++) {
        int64_t saved = c->spec->in_saved ? c->spec->in_saved[i] : -1;
        c->place[b->in[i]] =
            saved >= 0 ? (wefti_ref){c->r->saved_arg, saved} : (wefti_ref){(int32_t)i, 0};
    }
}

/* Counts the uses of a root by nodes and results, to decide whether a result may be accumulated in
 * place. Values added to it on the way do not count as uses. */
static int uses_of(const compiler *c, int32_t root) {
    const weft_body *b = c->body;
    int uses = 0;
    for (int64_t k = 0; k < b->node_count; k++) {
        const weft_node *n = &b->nodes[k];
        if (n->op->flags & WEFTI_OP_RESHAPE) continue;
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i] >= 0 && root_of(c, n->in[i]) == root) uses += !(adds(n) && i == 0);
    }
    for (int64_t o = 0; o < b->out_count; o++)
        if (root_of(c, b->out[o]) == root) uses++;
    return uses;
}

/* The output disposition of result o: how the routine delivers it. */
typedef enum ending { WRITTEN, COPIED, ADDED, ALIASED } ending;

static weft_status place_outputs(compiler *c, ending *end, bool *accumulate_root) {
    const weft_body *b = c->body;
    for (int64_t o = 0; o < b->out_count; o++) {
        int32_t value = b->out[o], root = root_of(c, value);
        int64_t saved = c->spec->out_saved ? c->spec->out_saved[o] : -1;
        wefti_ref target = saved >= 0 ? (wefti_ref){c->r->saved_arg, saved}
                                      : (wefti_ref){c->r->inputs + (int32_t)o, 0};
        bool add = c->spec->accumulate && c->spec->accumulate[o];
        bool is_input = b->values[root].node < 0;
        if (o < c->r->outputs) c->r->alias[o] = -1;
        if (add) {
            bool direct = !c->spec->late && !is_input && uses_of(c, root) == 1 &&
                          c->place[root].arg == WEFTI_REF_NONE;
            end[o] = direct ? WRITTEN : ADDED;
            if (direct) {
                c->place[root] = target;
                accumulate_root[root] = true;
            }
        } else if (is_input && c->in_place_chain[value] && o < c->r->outputs) {
            end[o] = ALIASED;
            c->r->alias[o] = c->place[root].arg;
        } else if (!is_input && c->place[root].arg == WEFTI_REF_NONE) {
            end[o] = WRITTEN;
            c->place[root] = target;
        } else {
            end[o] = COPIED;
        }
    }
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
        weft_status status =
            wefti_backend_estimate(backend, n, options, &wefti_machine_assumed, &estimate);
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
static weft_status prepare_node(compiler *c, const weft_node *n, uint32_t accumulate,
                                wefti_instruction *x, int *in_place) {
    wefti_prepare options = c->spec->prepare;
    *in_place = -1;
    if (communicates(n)) return accumulate ? WEFT_E_NO_IMPL : WEFT_OK;
    options.accumulate = accumulate;
    for (const wefti_backend *const *b = c->spec->backends; *b; b++) {
        weft_status status = ask_backend(*b, n, &options, x, in_place);
        if (status != WEFT_E_NO_IMPL) {
            if (status < 0) return wefti_prefix(status, "%s", n->op->name);
            return WEFT_OK;
        }
    }
    return WEFT_E_NO_IMPL;
}

static weft_status new_instruction(compiler *c, int ins, int outs, wefti_instruction **out) {
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
    x->workspace = none();
    x->transfer = -1;
    x->in = wefti_calloc((size_t)(ins + outs), sizeof *x->in);
    WEFT_REQUIRE(x->in, WEFT_E_NOMEM, "no memory for an instruction");
    x->out = x->in + ins;
    r->code_count++;
    *out = x;
    return WEFT_OK;
}

static void use(compiler *c, int32_t value, int32_t at) {
    int32_t root = root_of(c, value);
    if (c->first[root] < 0) c->first[root] = at;
    if (at > c->last[root]) c->last[root] = at;
}

/* The sum to which the kernel of node k may add its result `value` directly: no other node reads
 * either value in between. -1: none. */
static int32_t sum_of(const compiler *c, int64_t k, int32_t value) {
    const weft_body *b = c->body;
    int64_t at = -1;
    if (c->root[value] != value || c->place[value].arg != WEFTI_REF_NONE) return -1;
    for (int64_t o = 0; o < b->out_count; o++)
        if (root_of(c, b->out[o]) == value) return -1;
    for (int64_t j = k + 1; j < b->node_count; j++)
        for (int i = 0; i < b->nodes[j].inputs; i++) {
            if (b->nodes[j].in[i] < 0 || root_of(c, b->nodes[j].in[i]) != value) continue;
            if (at >= 0 || !adds(&b->nodes[j]) || i != 1) return -1;
            at = j;
        }
    if (at < 0) return -1;
    int32_t sum = b->nodes[at].in[0];
    if (b->values[sum].node >= k) return -1;
    for (int64_t j = k; j < at; j++)
        for (int i = 0; i < b->nodes[j].inputs; i++)
            if (b->nodes[j].in[i] >= 0 && root_of(c, b->nodes[j].in[i]) == root_of(c, sum))
                return -1;
    return sum;
}

/* Emits an addition in place, unless the kernel of the term has already added it. */
static weft_status emit_sum(compiler *c, const weft_node *n) {
    wefti_instruction *x;
    if (root_of(c, n->in[1]) == root_of(c, n->in[0])) return WEFT_OK;
    WEFT_TRY(new_instruction(c, 1, 1, &x));
    x->bytes = weft_desc_bytes(wefti_out(n, 0));
    x->dtype = wefti_out(n, 0)->dtype;
    x->add = true;
    x->cost.bytes = 3.0 * (double)x->bytes;
    c->moves[c->r->code_count - 1] = (move){n->in[1], n->in[0]};
    return WEFT_OK;
}

/* If a kernel may overwrite an operand that no later node reads, the result takes over its
 * memory. */
static void take_over(compiler *c, const weft_node *n, int in_place, int32_t at,
                      const int32_t *final_use) {
    if (in_place < 0 || in_place >= n->inputs || n->in[in_place] < 0) return;
    int32_t from = root_of(c, n->in[in_place]), to = n->out[0];
    if (root_of(c, to) != to || c->place[to].arg != WEFTI_REF_NONE) return;
    if (c->place[from].arg != WEFTI_REF_NONE || final_use[from] != at) return;
    if (weft_desc_bytes(&c->body->values[from].desc) != weft_desc_bytes(&c->body->values[to].desc))
        return;
    int operands = 0;
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0 && root_of(c, n->in[i]) == from) operands++;
    if (operands == 1) c->root[to] = from;
}

static weft_status emit_nodes(compiler *c, const bool *accumulate_root, ending *end) {
    const weft_body *b = c->body;
    int32_t *final_use; /* per root, in node numbers */
    WEFT_TRY(scratch_array(c, (size_t)b->value_count * sizeof(int32_t), &final_use));
    for (int64_t v = 0; v < b->value_count; v++) final_use[v] = -1;
    for (int64_t k = 0; k < b->node_count; k++)
        for (int i = 0; i < b->nodes[k].inputs; i++)
            if (b->nodes[k].in[i] >= 0) final_use[root_of(c, b->nodes[k].in[i])] = (int32_t)k;
    for (int64_t o = 0; o < b->out_count; o++) final_use[root_of(c, b->out[o])] = INT32_MAX;
    for (int64_t k = 0; k < b->node_count; k++) {
        const weft_node *n = &b->nodes[k];
        if (n->op->flags & WEFTI_OP_RESHAPE) continue;
        if (adds(n)) {
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
                c->place[n->out[o]] = none();
                for (int64_t e = 0; e < b->out_count; e++)
                    if (root_of(c, b->out[e]) == n->out[o]) end[e] = ADDED;
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
            if (sum[o] >= 0) c->root[n->out[o]] = root_of(c, sum[o]);
        wefti_node_cost(n, &x->cost);
        if (communicates(n)) {
            x->transfer = (int32_t)wefti_attr_int(n, "index");
            continue;
        }
        take_over(c, n, in_place, (int32_t)k, final_use);
        if (n->outputs && root_of(c, n->out[0]) != n->out[0])
            final_use[root_of(c, n->out[0])] = final_use[n->out[0]];
    }
    return WEFT_OK;
}

static weft_status emit_endings(compiler *c, const ending *end) {
    const weft_body *b = c->body;
    for (int64_t o = 0; o < b->out_count; o++) {
        if (end[o] != COPIED && end[o] != ADDED) continue;
        wefti_instruction *x;
        WEFT_TRY(new_instruction(c, 1, 1, &x));
        x->bytes = weft_desc_bytes(&b->values[b->out[o]].desc);
        x->dtype = b->values[b->out[o]].desc.dtype;
        x->add = end[o] == ADDED;
        x->cost.bytes = (double)x->bytes * (x->add ? 3.0 : 2.0);
        int64_t saved = c->spec->out_saved ? c->spec->out_saved[o] : -1;
        x->out[0] = saved >= 0 ? (wefti_ref){c->r->saved_arg, saved}
                               : (wefti_ref){c->r->inputs + (int32_t)o, 0};
        c->moves[c->r->code_count - 1] = (move){b->out[o], -1};
    }
    return WEFT_OK;
}

/* Whether transfer k may be posted while the transfers from `begin` on are in flight. It must not
 * read their results, and no endpoint may have more than WEFTI_COMM_DEPTH posts. */
static bool joins(const compiler *c, int32_t begin, int32_t k) {
    const wefti_instruction *x = &c->r->code[k];
    int posts = 1;
    if (!communicates(x->node)) return false;
    for (int32_t j = begin; j < k; j++) {
        const weft_node *before = c->r->code[j].node;
        posts += c->r->code[j].transfer == x->transfer;
        for (int i = 0; i < x->node->inputs; i++)
            for (int o = 0; o < before->outputs; o++)
                if (x->node->in[i] >= 0 && root_of(c, x->node->in[i]) == root_of(c, before->out[o]))
                    return false;
    }
    return posts <= WEFTI_COMM_DEPTH;
}

static void join_transfers(compiler *c) {
    for (int32_t begin = 0; begin < c->r->code_count; begin++) {
        if (!communicates(c->r->code[begin].node)) continue;
        int32_t k = begin;
        while (k + 1 < c->r->code_count && joins(c, begin, k + 1)) c->r->code[k++].joined = true;
        begin = k;
    }
}

/* Operands of transfers that are in flight together live until the last transfer ends. */
static void use_operands(compiler *c, const weft_node *n, int32_t at) {
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0) use(c, n->in[i], at);
    for (int o = 0; o < n->outputs; o++) use(c, n->out[o], at);
}

static weft_status place_frame(compiler *c) {
    const weft_body *b = c->body;
    wefti_routine *r = c->r;
    for (int64_t v = 0; v < b->value_count; v++) c->first[v] = c->last[v] = -1;
    for (int32_t k = 0, begin = 0; k < r->code_count; k++) {
        wefti_instruction *x = &r->code[k];
        int32_t end = k;
        if (k == 0 || !r->code[k - 1].joined) begin = k;
        while (r->code[end].joined) end++;
        if (!x->node) {
            use(c, c->moves[k].from, k);
            if (c->moves[k].to >= 0) use(c, c->moves[k].to, k);
            continue;
        }
        use_operands(c, x->node, begin);
        use_operands(c, x->node, end);
    }
    wefti_lifetime *life;
    int32_t *owner;
    int64_t count = 0, cap = b->value_count + r->code_count;
    WEFT_TRY(scratch_array(c, (size_t)cap * sizeof *life, &life));
    WEFT_TRY(scratch_array(c, (size_t)cap * sizeof *owner, &owner));
    for (int64_t v = 0; v < b->value_count; v++) {
        if (c->root[v] != v || c->place[v].arg != WEFTI_REF_NONE || c->first[v] < 0) continue;
        owner[count] = (int32_t)v;
        life[count++] = (wefti_lifetime){
            .bytes = weft_desc_bytes(&b->values[v].desc), .first = c->first[v], .last = c->last[v]};
    }
    int64_t values = count;
    for (int32_t k = 0; k < r->code_count; k++) {
        if (r->code[k].workspace_bytes <= 0) continue;
        owner[count] = k;
        life[count++] =
            (wefti_lifetime){.bytes = r->code[k].workspace_bytes, .first = k, .last = k};
    }
    WEFT_TRY(wefti_place(life, count, &r->frame_bytes));
#ifdef WEFT_DEBUG_CHECKS
    WEFT_TRY(wefti_place_check(life, count, r->frame_bytes));
#endif
    for (int64_t i = 0; i < values; i++)
        c->place[owner[i]] = (wefti_ref){WEFTI_REF_FRAME, life[i].offset};
    for (int64_t i = values; i < count; i++)
        r->code[owner[i]].workspace = (wefti_ref){WEFTI_REF_FRAME, life[i].offset};
    for (int32_t k = 0; k < r->code_count; k++) {
        wefti_instruction *x = &r->code[k];
        if (!x->node) {
            x->in[0] = c->place[root_of(c, c->moves[k].from)];
            if (c->moves[k].to >= 0) x->out[0] = c->place[root_of(c, c->moves[k].to)];
            continue;
        }
        for (int i = 0; i < x->node->inputs; i++)
            x->in[i] = x->node->in[i] < 0 ? none() : c->place[root_of(c, x->node->in[i])];
        for (int o = 0; o < x->node->outputs; o++)
            x->out[o] = c->place[root_of(c, x->node->out[o])];
    }
    return WEFT_OK;
}

static weft_status compile(compiler *c) {
    const weft_body *b = c->body;
    size_t values = (size_t)b->value_count + 1, outs = (size_t)b->out_count + 1;
    bool *accumulate_root;
    ending *end;
    WEFT_TRY(scratch_array(c, values * sizeof(int32_t), &c->root));
    WEFT_TRY(scratch_array(c, values * sizeof(wefti_ref), &c->place));
    WEFT_TRY(scratch_array(c, values * sizeof(bool), &c->in_place_chain));
    WEFT_TRY(scratch_array(c, values * sizeof(bool), &c->overwritten));
    WEFT_TRY(scratch_array(c, values * sizeof(int32_t), &c->first));
    WEFT_TRY(scratch_array(c, values * sizeof(int32_t), &c->last));
    WEFT_TRY(scratch_array(c, values * sizeof(bool), &accumulate_root));
    WEFT_TRY(scratch_array(c, outs * sizeof(ending), &end));
    WEFT_TRY(scratch_array(c, ((size_t)b->node_count + outs) * sizeof *c->moves, &c->moves));
    for (size_t v = 0; v < values; v++) c->place[v] = none();
    for (int64_t k = 0; k < b->node_count; k++) c->sums |= adds(&b->nodes[k]);
    WEFT_TRY(find_aliases(c));
    place_inputs(c);
    WEFT_TRY(place_outputs(c, end, accumulate_root));
    WEFT_TRY(emit_nodes(c, accumulate_root, end));
    WEFT_TRY(emit_endings(c, end));
    join_transfers(c);
    return place_frame(c);
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
    compiler c = {.spec = spec, .body = b, .r = r};
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
