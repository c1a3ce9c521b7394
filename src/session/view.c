/* The tensors of a session: the list over all devices, and the positions of their pieces. */
#include <stdlib.h>
#include <string.h>

#include "base/map/map.h"
#include "graph/graph.h"
#include "session/parts.h"

/* ---- the list of one graph's tensors over all devices ---- */

/* The numbers of a view's tensors by role and name, since models may have many thousand tensors. */
typedef struct view_names {
    wefti_map of[WEFTI_TENSOR_GRADIENT + 1];
} view_names;

static void names_free(view_names *n) {
    for (int role = 0; role <= WEFTI_TENSOR_GRADIENT; role++) wefti_map_free(&n->of[role]);
}

/* The position of a tensor in the model's order: parameters, states and inputs in the graph's
 * order, then outputs, then optimizer tensors, parameter by parameter. It is the same for every
 * plan. */
static int64_t place_of(const wefti_view *v, const wefti_map *inputs, int64_t count,
                        const wefti_view_tensor *t) {
    const bool optimizer = t->role == WEFTI_TENSOR_OPTIMIZER;
    if (t->role == WEFTI_TENSOR_OUTPUT || t->role == WEFTI_TENSOR_GRADIENT) return count;
    const int64_t of = wefti_map_find_text(inputs, optimizer ? v->tensors[t->param].name : t->name);
    if (of < 0) return 2 * count + 1;
    return optimizer ? count + 1 + of : of;
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

static weft_status sort_tensors(wefti_view *v, const wefti_map *inputs, int64_t input_count) {
    placed *list;
    int64_t *now; /* the new number of each tensor */
    WEFT_NEW_ARRAY(list, placed, v->count + 1);
    now = wefti_calloc((size_t)v->count + 1, sizeof *now);
    for (int64_t i = 0; i < v->count; i++)
        list[i] = (placed){place_of(v, inputs, input_count, &v->tensors[i]), i, v->tensors[i]};
    qsort(list, (size_t)v->count, sizeof *list, by_place);
    for (int64_t i = 0; i < v->count && now; i++) now[list[i].number] = i;
    for (int64_t i = 0; i < v->count && now; i++) {
        v->tensors[i] = list[i].tensor;
        if (v->tensors[i].param >= 0) v->tensors[i].param = now[v->tensors[i].param];
    }
    const bool sorted = now != NULL;
    wefti_free(now);
    wefti_free(list);
    WEFT_REQUIRE(sorted, WEFT_E_NOMEM, "no memory for a list of tensors");
    return WEFT_OK;
}

static weft_status add_tensor(wefti_view *v, const wefti_tensor *t, int64_t *out) {
    size_t cells = (size_t)v->devices;
    WEFT_TRY(WEFT_GROW(v->tensors, v->count, v->cap));
    wefti_view_tensor *x = &v->tensors[v->count];
    *x = (wefti_view_tensor){
        .name = t->name, .role = t->role, .whole = t->whole, .param = -1, .state = t->state};
    x->local = wefti_arena_alloc(v->arena, cells * sizeof *x->local);
    WEFT_REQUIRE(x->local, WEFT_E_NOMEM, "no memory for a list of tensors");
    for (size_t i = 0; i < cells; i++) x->local[i] = -1;
    x->fed = wefti_arena_alloc(v->arena, (size_t)v->microbatches);
    WEFT_REQUIRE(x->fed, WEFT_E_NOMEM, "no memory for a list of tensors");
    *out = v->count++;
    return WEFT_OK;
}

static bool is_tensor(const wefti_view *v, int64_t i, const wefti_tensor *t) {
    return i < v->count && v->tensors[i].role == t->role && !strcmp(v->tensors[i].name, t->name);
}

/* Programs of different devices list nearly the same tensors in the same order, so this tries the
 * next one first. `numbers` maps the program's tensors to the view's; a parameter comes before its
 * optimizer tensors. */
static weft_status add_program(wefti_view *v, view_names *known, int32_t rank, int64_t *numbers) {
    const wefti_site *site = &v->sites[rank];
    int64_t next = 0;
    for (int32_t i = 0; i < site->facts.tensor_count; i++) {
        const wefti_tensor *t = &site->tensors[i];
        if (!is_tensor(v, next, t)) {
            WEFT_TRY(wefti_map_add_text(&known->of[t->role], t->name, v->count, &next));
            if (next == v->count) WEFT_TRY(add_tensor(v, t, &next));
        }
        numbers[i] = next;
        if (t->param >= 0) v->tensors[next].param = numbers[t->param];
        v->tensors[next].local[rank] = i;
        next++;
    }
    return WEFT_OK;
}

static weft_status add_programs(wefti_view *v) {
    view_names known = {0};
    int32_t most = 0;
    int64_t *numbers;
    for (int32_t r = 0; r < v->devices; r++)
        if (v->sites[r].facts.tensor_count > most) most = v->sites[r].facts.tensor_count;
    WEFT_NEW_ARRAY(numbers, int64_t, most + 1);
    weft_status status = WEFT_OK;
    for (int32_t r = 0; r < v->devices && status >= 0; r++)
        status = add_program(v, &known, r, numbers);
    wefti_free(numbers);
    names_free(&known);
    return status;
}

static weft_status order_tensors(wefti_view *v, const weft_graph *g) {
    const weft_body *root = g->root;
    wefti_map inputs = {0};
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < root->in_count && status >= 0; i++)
        if (root->values[root->in[i]].name)
            status = wefti_map_add_text(&inputs, root->values[root->in[i]].name, i, NULL);
    if (status >= 0) status = sort_tensors(v, &inputs, root->in_count);
    wefti_map_free(&inputs);
    return status;
}

/* Describes a program of this process. */
static void describe(wefti_site *site, const wefti_program *p) {
    wefti_facts *f = &site->facts;
    site->tensors = p->tensors;
    *f = (wefti_facts){.mesh = p->mesh,
                       .arenas = wefti_program_footprint(p),
                       .program_bytes = p->program_bytes,
                       .saved_bytes = p->saved_bytes,
                       .forward_flops = p->forward_flops,
                       .backward_flops = p->backward_flops,
                       .rank = p->rank,
                       .tensor_count = p->tensor_count,
                       .holder = p->holder,
                       .fused = {p->fused[0], p->fused[1], p->fused[2]},
                       .has_loss = wefti_location_exists(p->loss),
                       .updates = p->step_count[WEFTI_SECTION_UPDATE] > 0,
                       .alone =
                           p->gather_from >= 0 &&
                           !wefti_section_communicates(p, WEFTI_SECTION_UPDATE, p->gather_from)};
    for (int32_t t = 0; t < p->tensor_count; t++) {
        int64_t bytes = weft_desc_bytes(&p->tensors[t].desc);
        if (p->tensors[t].role == WEFTI_TENSOR_PARAM) f->parameter_bytes += bytes;
        if (p->tensors[t].role == WEFTI_TENSOR_OPTIMIZER) f->optimizer_bytes += bytes;
    }
}

static weft_status describe_own(wefti_view *v) {
    WEFT_TRY(wefti_arena_create(&v->arena));
    WEFT_NEW_ARRAY(v->sites, wefti_site, v->devices);
    for (int32_t r = v->devices - 1; r >= 0; r--) {
        if (!v->programs[r]) continue;
        describe(&v->sites[r], v->programs[r]);
        v->own = v->programs[r];
    }
    return WEFT_OK;
}

static weft_status list_tensors(wefti_view *v, const weft_graph *g) {
    v->loss_everywhere = true;
    for (int32_t r = 0; r < v->devices; r++) v->loss_everywhere &= v->sites[r].facts.has_loss;
    for (int32_t r = 0; r < v->devices; r++)
        for (int32_t i = 0; i < v->sites[r].facts.tensor_count; i++)
            if (v->sites[r].tensors[i].microbatches > v->microbatches)
                v->microbatches = v->sites[r].tensors[i].microbatches;
    if (v->devices == 1 && v->microbatches == 1) { /* in the program's order */
        const wefti_program *p = v->own;
        for (int32_t i = 0; i < p->tensor_count; i++) {
            int64_t at;
            WEFT_TRY(add_tensor(v, &p->tensors[i], &at));
            v->tensors[at].local[0] = i;
            v->tensors[at].param = p->tensors[i].param;
        }
        return WEFT_OK;
    }
    WEFT_TRY(add_programs(v));
    WEFT_TRY(order_tensors(v, g));
    WEFT_NEW_ARRAY(v->reads, wefti_endpoint *, v->count + 1);
    return WEFT_OK;
}

static weft_status fill(const weft_session *s, wefti_view *v, const weft_graph *g) {
    WEFT_TRY(wefti_fail_world(s->world, describe_own(v)));
    if (s->world) WEFT_TRY(wefti_view_gather_sites(s, v));
    return wefti_fail_world(s->world, list_tensors(v, g));
}

weft_status wefti_view_create(const weft_session *s, const weft_graph *graph,
                              wefti_program **programs, wefti_view **out) {
    wefti_view *v = wefti_calloc(1, sizeof *v);
    weft_status status = WEFT_OK;
    if (v) {
        *v = (wefti_view){.programs = programs, .devices = s->devices, .microbatches = 1};
        status = fill(s, v, graph);
    } else {
        for (int32_t r = 0; r < s->devices; r++) wefti_program_destroy(programs[r]);
        wefti_free(programs);
        status = wefti_fail_world(s->world, WEFT_RAISE(WEFT_E_NOMEM, "no memory for a session"));
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
    for (int64_t i = 0; i < v->count && v->reads; i++) wefti_comm_unbind(v->reads[i]);
    for (int32_t r = 0; r < v->devices; r++) wefti_program_destroy(v->programs[r]);
    wefti_free(v->programs);
    wefti_free(v->sites);
    wefti_free(v->reads);
    wefti_free(v->tensors);
    wefti_arena_destroy(v->arena);
    wefti_free(v);
}

/* ---- look-up ---- */

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
    case WEFTI_TENSOR_GRADIENT:
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
                 "tensor %d does not exist: the program has %lld", index, (long long)v->count);
    *out = info_of(&v->tensors[index]);
    return WEFT_OK;
}

weft_status wefti_session_look_up(const weft_session *s, int program, const char *name,
                                  wefti_view **out_view, int *out) {
    WEFT_TRY(wefti_session_view(s, program, out_view));
    WEFT_REQUIRE(name, WEFT_E_ARG, "the name of a tensor is NULL");
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
    WEFT_TRY(wefti_session_look_up(s, program, name, &v, &index));
    *out = info_of(&v->tensors[index]);
    return WEFT_OK;
}

void wefti_session_owner(const weft_session *s, int program, int index, int *out_param,
                         int *out_state) {
    const wefti_view_tensor *t = &s->views[program]->tensors[index];
    *out_param = (int)t->param;
    *out_state = t->state;
}

/* ---- pieces ---- */

/* The microbatch being fed, for inputs that exist once for each microbatch. */
static int32_t microbatch_of(const weft_session *s, const wefti_view *v,
                             const wefti_view_tensor *t) {
    if (t->role != WEFTI_TENSOR_INPUT || v->microbatches == 1) return 0;
    return s->accumulated < v->microbatches ? s->accumulated : v->microbatches - 1;
}

void wefti_view_mark_fed(const weft_session *s, wefti_view *v, int index, wefti_feeding how) {
    const wefti_view_tensor *t = &v->tensors[index];
    unsigned char *given = &t->fed[microbatch_of(s, v, t)];
    if (*given < how) *given = (unsigned char)how;
}

/* An input that no pass of this process reads may be missing. */
weft_status wefti_view_check_fed(const weft_session *s, int program) {
    const wefti_view *v = s->views[program];
    for (int64_t i = 0; i < v->count; i++) {
        const wefti_view_tensor *t = &v->tensors[i];
        int32_t m = microbatch_of(s, v, t);
        bool here = false;
        for (int32_t r = 0; r < v->devices; r++)
            here |= wefti_session_has(s, r) && t->local[r] >= 0;
        WEFT_REQUIRE(t->role != WEFTI_TENSOR_INPUT || !here || t->fed[m] != WEFTI_INPUT_UNFED,
                     WEFT_E_ARG,
                     "input '%s' of program %d was not fed since the last pass: weft_session_feed "
                     "it before each one",
                     t->name, program);
    }
    return WEFT_OK;
}

void wefti_view_consume(wefti_view *v) {
    for (int64_t i = 0; i < v->count; i++)
        for (int32_t m = 0; m < v->microbatches; m++)
            if (v->tensors[i].fed[m] == WEFTI_INPUT_FED) v->tensors[i].fed[m] = WEFTI_INPUT_UNFED;
}

/* The tensor on one device; NULL: not there. */
static const wefti_tensor *local_of(const wefti_view *v, int index, int32_t rank) {
    const wefti_view_tensor *t = &v->tensors[index];
    int32_t i = t->local[rank];
    return i < 0 ? NULL : &v->sites[rank].tensors[i];
}

weft_status wefti_session_pieces(weft_session *s, int program, int index, wefti_session_piece *out,
                                 int32_t *out_count) {
    wefti_view *v;
    const wefti_mesh *owner = NULL; /* of the first device with the tensor */
    int32_t count = 0;
    WEFT_TRY(wefti_session_view(s, program, &v));
    WEFT_TRY(wefti_session_start(s));
    for (int32_t r = 0; r < v->devices; r++) {
        const wefti_tensor *t = local_of(v, index, r);
        const wefti_site *site = &v->sites[r];
        const wefti_mesh *mesh = &site->facts.mesh;
        if (!t) continue;
        wefti_session_piece *piece = &out[count++];
        if (!owner) owner = mesh;
        piece->rank = r;
        wefti_rank_device *device =
            wefti_session_has(s, r) ? wefti_workers_device(s->workers, r) : NULL;
        piece->at =
            wefti_location_plus(t->home, microbatch_of(s, v, &v->tensors[index]) * t->stride);
        piece->box = wefti_site_region(site, t);
        const int64_t bytes = wefti_region_elems(&piece->box, t->whole.rank) *
                              (int64_t)weft_dtype_bytes(t->whole.dtype);
        piece->home = device ? wefti_rank_device_home(device, piece->at, bytes)
                             : (wefti_home){.bytes = bytes};
        /* Each stage that reads a parameter has a term of its gradient. Other tensors of several
         * stages are copies. */
        bool same = mesh->first == owner->first,
             first = !mesh->axes || wefti_layout_counts(&t->layout, mesh, r),
             added = !same && t->role == WEFTI_TENSOR_GRADIENT;
        piece->counts = same && first;
        piece->term = added && first;
        if (first || !(same || added) || !(t->layout.sum | t->layout.max)) continue;
        int32_t at[WEFTI_MAX_AXES];
        wefti_mesh_coordinates(mesh, r, at);
        piece->term = true; /* unless it repeats another piece, along an axis without meaning for
                               this tensor */
        for (int a = 0; a < mesh->axes; a++)
            if (!(wefti_layout_axes(&t->layout) >> a & 1u) && at[a]) piece->term = false;
    }
    *out_count = count;
    return wefti_host_copies_push_piece(s, v, index, out, count);
}

int wefti_session_number(const weft_session *s, int program, int32_t rank, int32_t local) {
    const wefti_view *v = s->views[program];
    for (int64_t i = 0; i < v->count; i++)
        if (v->tensors[i].local[rank] == local) return (int)i;
    return -1;
}
