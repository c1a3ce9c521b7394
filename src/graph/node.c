/* The view of a node that op functions use, the registry, and defaults that all ops share. */
#include "graph/graph.h"

#include <assert.h>
#include <string.h>

const weft_op_def *wefti_op_find(const wefti_op_registry *registry, const char *name) {
    for (int i = 0; i < registry->count; i++)
        if (!strcmp(registry->ops[i]->name, name)) return registry->ops[i];
    return NULL;
}

const weft_desc *wefti_in(const weft_node *n, int i) {
    if (i < 0 || i >= n->inputs || n->in[i] < 0) return NULL;
    return &n->body->values[n->in[i]].desc;
}

const weft_desc *wefti_out(const weft_node *n, int o) {
    if (o < 0 || o >= n->outputs) return NULL;
    return &n->body->values[n->out[o]].desc;
}

bool wefti_in_is_param(const weft_node *n, int i) {
    if (i < 0 || i >= n->inputs || n->in[i] < 0) return false;
    return n->body->values[n->in[i]].kind == WEFTI_VALUE_PARAM;
}

const char *wefti_attr_name(wefti_attr_id id) {
#define NAME(name_) #name_,
    static const char *const names[] = {"", WEFT_ATTR_LIST(NAME)};
#undef NAME
    return names[id];
}

int wefti_attr_count(const weft_op_def *op) {
    int count = 0;
    if (op->attrs)
        while (op->attrs[count].id) count++;
    return count;
}

static const wefti_attr no_attr;

static const wefti_attr *find_attr(const weft_node *n, wefti_attr_id id, wefti_attr_kind kind) {
    if (n->attrs)
        for (const wefti_attr *a = n->attrs; a->id; a++)
            if (a->id == id && a->kind == kind) return a;
    assert(0 && "an op reads an attribute that it does not declare");
    return &no_attr;
}

int64_t wefti_attr_int(const weft_node *n, wefti_attr_id id) {
    return find_attr(n, id, WEFTI_ATTR_INT)->i;
}

bool wefti_node_is_f8(const weft_node *n) {
    for (const wefti_attr *a = n->attrs; a && a->id; a++)
        if (a->id == WEFTI_AT_f8) return a->i != 0;
    return false;
}

double wefti_attr_float(const weft_node *n, wefti_attr_id id) {
    return find_attr(n, id, WEFTI_ATTR_FLOAT)->f;
}

const wefti_ints *wefti_attr_ints(const weft_node *n, wefti_attr_id id) {
    return &find_attr(n, id, WEFTI_ATTR_INTS)->ints;
}

const wefti_table *wefti_attr_table(const weft_node *n, wefti_attr_id id) {
    return &find_attr(n, id, WEFTI_ATTR_TABLE)->table;
}

/* The finaliser of SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
 * Generators", OOPSLA 2014, figure 16. */
static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint64_t wefti_random_stream(const wefti_random *r, const weft_node *n) {
    uint64_t number = n->stream;
    if (n->attrs) /* a backward op names the stream of its forward node */
        for (const wefti_attr *a = n->attrs; a->id; a++)
            if (a->id == WEFTI_AT_stream && a->kind == WEFTI_ATTR_INT && a->i >= 0)
                number = (uint64_t)a->i;
    uint64_t h = mix(r->call_stream + 0x9E3779B97F4A7C15u);
    h = mix(h ^ (number + 0x9E3779B97F4A7C15u));
    return mix(h ^ (r->step + 0x3C6EF372FE94F82Au));
}

int64_t wefti_random_place(const wefti_random *r, const weft_node *n, const weft_desc *x,
                           int64_t out_strides[WEFT_MAX_RANK]) {
    const wefti_ints *whole = wefti_attr_ints(n, WEFTI_AT_whole),
                     *begin = wefti_attr_ints(n, WEFTI_AT_begin);
    bool piece = whole->count == x->rank;
    int64_t stride = 1, first = 0;
    for (int d = x->rank - 1; d >= 0; d--) {
        out_strides[d] = stride;
        if (piece) first += begin->v[d] * stride;
        stride *= piece ? whole->v[d] : x->shape[d];
    }
    int64_t each = x->rank ? out_strides[0] : 1; /* elements per sample; `stride` has the
                                                    elements of the whole tensor */
    int64_t front = !x->rank ? 1 : piece ? whole->v[0] : x->shape[0];
    int64_t share = r->samples > 0 ? (stride - 1) / r->samples + 1 : 0;
    if (share > each || (share > 0 && front <= 1)) each = share;
    uint64_t rows = (uint64_t)r->row_offset * (uint64_t)each;
    /* Callers add element indices to this counter, so it wraps round well before it overflows. */
    return (int64_t)(((uint64_t)first + rows) & UINT64_MAX >> 2);
}

double wefti_node_bytes(const weft_node *n) {
    double bytes = 0;
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0) bytes += (double)weft_desc_bytes(wefti_in(n, i));
    for (int o = 0; o < n->outputs; o++) bytes += (double)weft_desc_bytes(wefti_out(n, o));
    return bytes;
}

void wefti_node_cost(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){0, wefti_node_bytes(n)};
    if (n->op->cost) {
        n->op->cost(n, out);
        return;
    }
    for (int o = 0; o < n->outputs; o++) out->flops += (double)weft_desc_elems(wefti_out(n, o));
}

double wefti_cost_seconds(const weft_node *n, const wefti_cost *cost,
                          const wefti_machine *machine) {
    int narrow = 1;
    for (int i = 0; i < n->inputs; i++) {
        const weft_desc *x = wefti_in(n, i);
        if (x && wefti_dtype_is_float(x->dtype) && x->dtype != WEFT_BF16) narrow = 0;
    }
    return wefti_machine_seconds(machine, n->op->work, narrow, cost->flops, cost->bytes);
}

double wefti_node_seconds(const weft_node *n, const wefti_machine *machine) {
    wefti_cost cost;
    wefti_node_cost(n, &cost);
    return wefti_cost_seconds(n, &cost, machine);
}

/* The step of an operand's index for each dimension of the result: 0 if the operand is broadcast
 * there. */
static void broadcast_strides(const weft_desc *from, const weft_desc *to,
                              int64_t out[WEFT_MAX_RANK]) {
    int64_t own[WEFT_MAX_RANK];
    wefti_strides(from, own);
    for (int d = 0; d < to->rank; d++) {
        int i = d - (to->rank - from->rank);
        out[d] = i < 0 || from->shape[i] == 1 ? 0 : own[i];
    }
}

/* Iterates over the elements of a node's result, with the offset of each in every operand. */
typedef struct walk {
    const weft_node *n;
    const weft_desc *to;
    int64_t strides[WEFTI_MAX_IN][WEFT_MAX_RANK], offset[WEFTI_MAX_IN], index[WEFT_MAX_RANK];
} walk;

static walk walk_begin(const weft_node *n) {
    walk w = {.n = n, .to = wefti_out(n, 0)};
    for (int i = 0; i < n->inputs; i++)
        if (wefti_in(n, i)) broadcast_strides(wefti_in(n, i), w.to, w.strides[i]);
    return w;
}

/* The next index, like an odometer. */
static void walk_on(walk *w) {
    for (int d = w->to->rank - 1; d >= 0; d--) {
        bool carry = ++w->index[d] == w->to->shape[d];
        for (int i = 0; i < w->n->inputs; i++)
            w->offset[i] += carry ? w->strides[i][d] * (1 - w->to->shape[d]) : w->strides[i][d];
        if (!carry) break;
        w->index[d] = 0;
    }
}

/* The value that a load returns after v is stored as `dtype`. Floating results are not rounded. */
static double as_stored(weft_dtype dtype, double v) {
    int64_t space = 0;
    if (wefti_dtype_is_float(dtype)) return v;
    wefti_store(dtype, &space, 0, v);
    return wefti_load(dtype, &space, 0);
}

weft_status wefti_elementwise_reference(const weft_node *n, const wefti_random *random,
                                        const double *const *in, double *const *out) {
    (void)random;
    WEFT_REQUIRE(n->op->element && n->outputs == 1, WEFT_E_BUG, "%s has no element function",
                 n->op->name);
    walk w = walk_begin(n);
    int64_t count = weft_desc_elems(w.to);
    double x[WEFTI_MAX_IN] = {0};
    for (int64_t e = 0; e < count; e++, walk_on(&w)) {
        for (int i = 0; i < n->inputs; i++) x[i] = in[i] ? in[i][w.offset[i]] : 0.0;
        out[0][e] = as_stored(w.to->dtype, n->op->element(n, x));
    }
    return WEFT_OK;
}

bool wefti_elementwise_is_integer(const weft_node *n) {
    bool integer = n->op->integer && !wefti_dtype_is_float(wefti_out(n, 0)->dtype);
    for (int i = 0; i < n->inputs; i++)
        integer = integer && wefti_in(n, i) && !wefti_dtype_is_float(wefti_in(n, i)->dtype);
    return integer;
}

void wefti_elementwise_integer(const weft_node *n, const void *const *in, void *out) {
    walk w = walk_begin(n);
    int64_t count = weft_desc_elems(w.to), x[WEFTI_MAX_IN] = {0};
    for (int64_t e = 0; e < count; e++, walk_on(&w)) {
        for (int i = 0; i < n->inputs; i++)
            x[i] = wefti_load_integer(wefti_in(n, i)->dtype, in[i], w.offset[i]);
        wefti_store_integer(w.to->dtype, out, e, n->op->integer(n, x));
    }
}
