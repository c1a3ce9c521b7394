/* Tensors of a session: whole to those who read and write them, in pieces where they lie. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/graph.h"
#include "layout/slab.h"
#include "train/session_parts.h"

/* ---- the list of one graph's tensors over all devices ---- */

/* Where `name` is in the order of the model: parameters, states and inputs as the graph has them,
 * then outputs, then what belongs to the optimizer, parameter by parameter. The same for every
 * plan. */
static int64_t place_of(const weft_graph *g, const wefti_view_tensor *t) {
    const weft_body *root = g->root;
    int64_t count = root->in_count;
    if (t->role == WEFTI_TENSOR_OUTPUT) return count;
    for (int64_t i = 0; i < count; i++) {
        const char *name = root->values[root->in[i]].name;
        size_t length = name ? strlen(name) : 0;
        if (!name || strncmp(t->name, name, length)) continue;
        if (t->role != WEFTI_TENSOR_OPTIMIZER && !t->name[length]) return i;
        if (t->role == WEFTI_TENSOR_OPTIMIZER && t->name[length] == '.' &&
            !strchr(t->name + length + 1, '.'))
            return count + 1 + i;
    }
    return 2 * count + 1;
}

typedef struct placed {
    int64_t place, number;
    wefti_view_tensor tensor;
} placed;

static int by_place(const void *a, const void *b) {
    const placed *x = a, *y = b;
    if (x->place != y->place) return x->place < y->place ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

static weft_status sort_tensors(wefti_view *v, const weft_graph *g) {
    placed *list;
    WEFT_NEW_ARRAY(list, placed, v->count + 1);
    for (int64_t i = 0; i < v->count; i++)
        list[i] = (placed){place_of(g, &v->tensors[i]), i, v->tensors[i]};
    qsort(list, (size_t)v->count, sizeof *list, by_place);
    for (int64_t i = 0; i < v->count; i++) v->tensors[i] = list[i].tensor;
    wefti_free(list);
    return WEFT_OK;
}

static weft_status add_tensor(wefti_view *v, const wefti_tensor *t, int64_t *out) {
    size_t cells = (size_t)v->devices * (size_t)v->microbatches;
    WEFT_TRY(WEFT_GROW(v->tensors, v->count, v->cap));
    wefti_view_tensor *x = &v->tensors[v->count];
    *x = (wefti_view_tensor){.name = t->name, .role = t->role, .whole = t->whole};
    x->local = wefti_arena_alloc(v->arena, cells * sizeof *x->local);
    WEFT_REQUIRE(x->local, WEFT_E_NOMEM, "no memory for a list of tensors");
    for (size_t i = 0; i < cells; i++) x->local[i] = -1;
    *out = v->count++;
    return WEFT_OK;
}

static bool is_tensor(const wefti_view *v, int64_t i, const wefti_tensor *t) {
    return i < v->count && v->tensors[i].role == t->role && !strcmp(v->tensors[i].name, t->name);
}

/* Programs of different devices list nearly the same in the same order: the next one is looked at
 * first. */
static weft_status add_program(wefti_view *v, int32_t rank) {
    const wefti_program *p = v->programs[rank];
    int64_t next = 0;
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *t = &p->tensors[i];
        if (!is_tensor(v, next, t))
            for (next = 0; next < v->count && !is_tensor(v, next, t);) next++;
        if (next == v->count) WEFT_TRY(add_tensor(v, t, &next));
        v->tensors[next].local[t->microbatch * v->devices + rank] = i;
        next++;
    }
    return WEFT_OK;
}

static weft_status fill(wefti_view *v, const weft_graph *g) {
    WEFT_TRY(wefti_arena_create(&v->arena));
    for (int32_t r = 0; r < v->devices; r++)
        for (int32_t i = 0; i < v->programs[r]->tensor_count; i++)
            if (v->programs[r]->tensors[i].microbatch >= v->microbatches)
                v->microbatches = v->programs[r]->tensors[i].microbatch + 1;
    if (v->devices == 1 && v->microbatches == 1) { /* as the program has them */
        const wefti_program *p = v->programs[0];
        for (int32_t i = 0; i < p->tensor_count; i++) {
            int64_t at;
            WEFT_TRY(add_tensor(v, &p->tensors[i], &at));
            v->tensors[at].local[0] = i;
        }
        return WEFT_OK;
    }
    for (int32_t r = 0; r < v->devices; r++) WEFT_TRY(add_program(v, r));
    return sort_tensors(v, g);
}

weft_status wefti_view_create(const weft_graph *graph, wefti_program **programs, int32_t devices,
                              wefti_view **out) {
    wefti_view *v = wefti_calloc(1, sizeof *v);
    weft_status status = v ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a session");
    if (v) {
        *v = (wefti_view){.programs = programs, .devices = devices, .microbatches = 1};
        status = fill(v, graph);
    } else {
        for (int32_t r = 0; r < devices; r++) wefti_program_destroy(programs[r]);
        wefti_free(programs);
    }
    if (status < 0) {
        wefti_view_destroy(v);
        return status;
    }
    *out = v;
    return WEFT_OK;
}

void wefti_view_destroy(wefti_view *v) {
    if (!v) return;
    for (int32_t r = 0; r < v->devices; r++) wefti_program_destroy(v->programs[r]);
    wefti_free(v->programs);
    wefti_free(v->tensors);
    wefti_arena_destroy(v->arena);
    wefti_free(v);
}

/* ---- looking it up ---- */

static weft_tensor_info info_of(const wefti_view_tensor *t) {
    weft_tensor_info info = {
        .name = t->name, .desc = t->whole, .bytes = weft_desc_bytes(&t->whole)};
    switch (t->role) {
    case WEFTI_TENSOR_PARAM:
        info.role = WEFT_ROLE_PARAM;
        break;
    case WEFTI_TENSOR_STATE:
        info.role = WEFT_ROLE_STATE;
        break;
    case WEFTI_TENSOR_OPTIMIZER:
        info.role = WEFT_ROLE_OPTIMIZER;
        break;
    case WEFTI_TENSOR_INPUT:
        info.role = WEFT_ROLE_INPUT;
        break;
    case WEFTI_TENSOR_OUTPUT:
        info.role = WEFT_ROLE_OUTPUT;
        break;
    }
    return info;
}

int weft_session_tensors(const weft_session *s, int program) {
    wefti_view *v;
    return wefti_session_view(s, program, &v) < 0 ? 0 : (int)v->count;
}

weft_status weft_session_tensor(const weft_session *s, int program, int index,
                                weft_tensor_info *out) {
    wefti_view *v;
    WEFT_TRY(wefti_session_view(s, program, &v));
    WEFT_REQUIRE(index >= 0 && index < v->count, WEFT_E_ARG,
                 "there is no tensor %d: the program has %lld", index, (long long)v->count);
    *out = info_of(&v->tensors[index]);
    return WEFT_OK;
}

static weft_status find(const weft_session *s, int program, const char *name, wefti_view **out_view,
                        int *out) {
    WEFT_TRY(wefti_session_view(s, program, out_view));
    for (int64_t i = 0; i < (*out_view)->count; i++)
        if (!strcmp((*out_view)->tensors[i].name, name)) {
            *out = (int)i;
            return WEFT_OK;
        }
    WEFT_FAIL(WEFT_E_NOT_FOUND, "the model has no tensor '%s'", name);
}

weft_status weft_session_find(const weft_session *s, int program, const char *name,
                              weft_tensor_info *out) {
    wefti_view *v;
    int index;
    WEFT_TRY(find(s, program, name, &v, &index));
    *out = info_of(&v->tensors[index]);
    return WEFT_OK;
}

/* ---- pieces ---- */

/* The microbatch that is being fed, where each has inputs of its own. */
static int32_t microbatch_of(const weft_session *s, const wefti_view *v,
                             const wefti_view_tensor *t) {
    if (t->role != WEFTI_TENSOR_INPUT || v->microbatches == 1) return 0;
    return s->accumulated < v->microbatches ? s->accumulated : v->microbatches - 1;
}

/* The tensor on one device; NULL: not there. */
static const wefti_tensor *local_of(const weft_session *s, const wefti_view *v, int index,
                                    int32_t rank) {
    const wefti_view_tensor *t = &v->tensors[index];
    int32_t i = t->local[microbatch_of(s, v, t) * v->devices + rank];
    return i < 0 ? NULL : &v->programs[rank]->tensors[i];
}

weft_status wefti_session_pieces(weft_session *s, int program, int index, wefti_session_piece *out,
                                 int32_t *out_count) {
    wefti_view *v;
    const wefti_mesh *owner = NULL; /* of the first device that has it */
    int32_t count = 0;
    WEFT_TRY(wefti_session_view(s, program, &v));
    WEFT_TRY(wefti_session_start(s));
    for (int32_t r = 0; r < v->devices; r++) {
        const wefti_tensor *t = local_of(s, v, index, r);
        const wefti_program *p = v->programs[r];
        if (!t) continue;
        wefti_session_piece *piece = &out[count++];
        if (!owner) owner = &p->mesh;
        piece->rank = r;
        piece->data = wefti_device_memory(wefti_crew_device(s->crew, r)) + t->offset;
        wefti_program_box(p, t, &piece->box);
        bool same = p->mesh.first == owner->first;
        piece->counts = same && (!p->mesh.axes || wefti_layout_counts(&t->layout, &p->mesh, r));
        piece->term = false;
        if (!same || piece->counts || !(t->layout.sum | t->layout.max)) continue;
        int32_t at[WEFTI_MAX_AXES];
        wefti_mesh_coordinates(&p->mesh, r, at);
        piece->term = true; /* unless it repeats another's, along an axis that means nothing here */
        for (int a = 0; a < p->mesh.axes; a++)
            if (!(wefti_layout_axes(&t->layout) >> a & 1u) && at[a]) piece->term = false;
    }
    *out_count = count;
    return WEFT_OK;
}

/* A tensor of the right size; its pieces are in s->pieces. */
static weft_status locate(weft_session *s, int program, const char *name, size_t bytes,
                          wefti_view **out_view, int *out_index, int32_t *out_count) {
    WEFT_TRY(find(s, program, name, out_view, out_index));
    const weft_desc *whole = &(*out_view)->tensors[*out_index].whole;
    WEFT_REQUIRE(bytes == (size_t)weft_desc_bytes(whole), WEFT_E_SHAPE,
                 "'%s' is %s, %lld bytes, not %zu", name, wefti_desc_text(whole).text,
                 (long long)weft_desc_bytes(whole), bytes);
    return wefti_session_pieces(s, program, *out_index, s->pieces, out_count);
}

static wefti_box box_of(const weft_desc *whole) {
    wefti_box box = {{0}, {0}};
    for (int d = 0; d < whole->rank; d++) box.size[d] = whole->shape[d];
    return box;
}

/* The part of `box` that each device has, out of `data`, which is the box. */
static void scatter(const weft_desc *whole, const wefti_session_piece *pieces, int32_t count,
                    const wefti_box *box, const void *data) {
    for (int32_t i = 0; i < count; i++) {
        wefti_box part;
        if (wefti_box_intersect(box, &pieces[i].box, whole->rank, &part))
            wefti_box_copy(&part, box, data, &pieces[i].box, pieces[i].data, whole->rank,
                           weft_dtype_bytes(whole->dtype));
    }
}

weft_status weft_session_feed(weft_session *s, int program, const char *name, const void *data,
                              size_t bytes) {
    wefti_view *v;
    const wefti_session_piece *pieces = s->pieces;
    int index;
    int32_t count;
    WEFT_TRY(locate(s, program, name, bytes, &v, &index, &count));
    const wefti_view_tensor *t = &v->tensors[index];
    wefti_box box = box_of(&t->whole);
    bool input = t->role == WEFTI_TENSOR_INPUT;
    if (input) scatter(&t->whole, pieces, count, &box, data);
    for (int32_t i = 0; i < count && input; i++)
        wefti_device_observe(wefti_crew_device(s->crew, pieces[i].rank), pieces[i].data,
                             wefti_box_elems(&pieces[i].box, t->whole.rank) *
                                 (int64_t)weft_dtype_bytes(t->whole.dtype));
    WEFT_REQUIRE(input, WEFT_E_ARG, "'%s' is no input", name);
    return WEFT_OK;
}

/* ---- reading ---- */

/* out += piece, or the larger of both, row by row. */
static void add_term(const weft_desc *whole, const wefti_session_piece *piece, bool largest,
                     void *out) {
    int64_t strides[WEFT_MAX_RANK], elems = wefti_box_elems(&piece->box, whole->rank);
    wefti_strides(whole, strides);
    for (int64_t e = 0; e < elems; e++) {
        int64_t rest = e, at = 0;
        for (int d = whole->rank - 1; d >= 0; d--) {
            at += (piece->box.begin[d] + rest % piece->box.size[d]) * strides[d];
            rest /= piece->box.size[d];
        }
        double a = wefti_load(whole->dtype, out, at), b = wefti_load(whole->dtype, piece->data, e);
        wefti_store(whole->dtype, out, at, largest ? fmax(a, b) : a + b);
    }
}

weft_status weft_session_read(weft_session *s, int program, const char *name, void *data,
                              size_t bytes) {
    wefti_view *v;
    const wefti_session_piece *pieces = s->pieces;
    int index;
    int32_t count;
    WEFT_TRY(locate(s, program, name, bytes, &v, &index, &count));
    const weft_desc *whole = &v->tensors[index].whole;
    wefti_box box = box_of(whole);
    for (int32_t i = 0; i < count; i++)
        if (pieces[i].counts)
            wefti_box_copy(&pieces[i].box, &pieces[i].box, pieces[i].data, &box, data, whole->rank,
                           weft_dtype_bytes(whole->dtype));
    for (int32_t i = 0; i < count; i++)
        if (pieces[i].term)
            add_term(whole, &pieces[i], local_of(s, v, index, pieces[i].rank)->layout.max != 0,
                     data);
    return WEFT_OK;
}

/* ---- writing ---- */

weft_status weft_session_write(weft_session *s, int program, const char *name, const void *data,
                               size_t bytes) {
    wefti_view *v;
    const wefti_session_piece *pieces = s->pieces;
    int index;
    int32_t count;
    bool terms = false;
    WEFT_TRY(locate(s, program, name, bytes, &v, &index, &count));
    for (int32_t i = 0; i < count; i++) terms |= pieces[i].term;
    wefti_box box = box_of(&v->tensors[index].whole);
    if (!terms) scatter(&v->tensors[index].whole, pieces, count, &box, data);
    s->packed = false;
    WEFT_REQUIRE(!terms, WEFT_E_ARG,
                 "'%s' is a sum of terms on several devices: it can be read, not written", name);
    return WEFT_OK;
}

enum { FILL_BYTES = 1 << 20 };

/* Through a buffer, in boxes that are contiguous in the whole. */
static weft_status fill_pieces(const weft_desc *whole, const wefti_session_piece *pieces,
                               int32_t piece_count, int64_t first, int64_t count,
                               wefti_session_source *source, void *context) {
    int64_t most = FILL_BYTES / (int64_t)weft_dtype_bytes(whole->dtype), part;
    weft_status status = WEFT_OK;
    void *buffer = wefti_alloc(FILL_BYTES);
    WEFT_REQUIRE(buffer, WEFT_E_NOMEM, "no memory to cut a tensor into pieces");
    for (int64_t at = 0; at < count && status == WEFT_OK; at += part) {
        wefti_box box;
        part = wefti_slab(whole, first + at, count - at < most ? count - at : most, &box);
        status = source(context, at, part, buffer);
        if (status == WEFT_OK) scatter(whole, pieces, piece_count, &box, buffer);
    }
    wefti_free(buffer);
    return status;
}

weft_status wefti_session_fill(weft_session *s, int program, int index, int64_t first,
                               int64_t count, wefti_session_source *source, void *context) {
    wefti_view *v;
    const wefti_session_piece *pieces = s->pieces;
    int32_t found;
    WEFT_TRY(wefti_session_view(s, program, &v));
    const weft_desc *whole = &v->tensors[index].whole;
    WEFT_TRY(wefti_session_pieces(s, program, index, s->pieces, &found));
    s->packed = false;
    if (s->devices == 1)
        return source(context, 0, count,
                      (char *)pieces[0].data + first * (int64_t)weft_dtype_bytes(whole->dtype));
    return fill_pieces(whole, pieces, found, first, count, source, context);
}

int wefti_session_number(const weft_session *s, int program, int32_t rank, int32_t local) {
    const wefti_view *v = s->views[program];
    for (int64_t i = 0; i < v->count; i++)
        for (int32_t m = 0; m < v->microbatches; m++)
            if (v->tensors[i].local[m * v->devices + rank] == local) return (int)i;
    return -1;
}
