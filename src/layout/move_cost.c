/* The cost of a move. Bytes: the most that any device receives. Seconds: these bytes over the
 * slowest link of the move, plus the latency once. Ring formulas: Thakur, Rabenseifner and Gropp,
 * IJHPCA 2005. */
#include "layout/moves.h"

static int64_t largest_part(int64_t n, const wefti_dim_split *split, int32_t parts) {
    int64_t units = n / split->unit;
    return (units + parts - 1) / parts * split->unit;
}

static bool is_even(int64_t n, const wefti_dim_split *split, int32_t parts) {
    return n / split->unit % parts == 0;
}

int64_t wefti_layout_bytes(const wefti_layout *layout, const wefti_mesh *mesh,
                           const weft_desc *whole) {
    int64_t bytes = (int64_t)weft_dtype_bytes(whole->dtype);
    for (int d = 0; d < layout->rank; d++)
        bytes *=
            largest_part(whole->shape[d], &layout->dim[d], wefti_layout_parts(layout, mesh, d));
    return bytes;
}

static bool same_split(const wefti_dim_split *a, const wefti_dim_split *b) {
    if (a->count != b->count || a->unit != b->unit) return false;
    for (int i = 0; i < a->count; i++)
        if (a->axis[i] != b->axis[i]) return false;
    return true;
}

typedef struct change {
    const wefti_mesh *mesh;
    const weft_desc *whole;
    const wefti_layout *from, *to;
    int dims, dim[WEFT_MAX_RANK]; /* the dimensions whose split differs between before and after */
    int64_t part[2][WEFT_MAX_RANK]; /* of these: the size of all parts before and after; 0: they
                                       differ */
} change;

static void part_at(const change *c, int side, int k, const int32_t *at, int64_t *begin,
                    int64_t *size) {
    const int d = c->dim[k];
    const wefti_dim_split *split = &(side ? c->to : c->from)->dim[d];
    int32_t parts = 1, index = 0;
    for (int i = 0; i < split->count; i++) {
        int32_t axis = c->mesh->axis[split->axis[i]].size;
        parts *= axis;
        index = index * axis + at[split->axis[i]];
    }
    *size = c->part[side][k];
    *begin = index * *size;
    if (*size) return;
    wefti_part(c->whole->shape[d], split->unit, parts, index, begin, size);
}

/* The elements, over the changed dimensions, that the device at these coordinates wants but
 * lacks. */
static int64_t missing(const change *c, const int32_t *at) {
    int64_t wanted = 1, had = 1;
    for (int k = 0; k < c->dims; k++) {
        int64_t have, have_size, want, want_size;
        part_at(c, 0, k, at, &have, &have_size);
        part_at(c, 1, k, at, &want, &want_size);
        int64_t begin = have > want ? have : want;
        int64_t end = have + have_size < want + want_size ? have + have_size : want + want_size;
        wanted *= want_size;
        had *= end > begin ? end - begin : 0;
    }
    return wanted - had;
}

/* The largest number of missing elements. Tries all coordinates along the axes that matter, until
 * a device lacks all that it wants. */
static int64_t most_missing(const change *c) {
    wefti_axes axes = 0;
    int64_t all = 1; /* that each device wants; 0: they want unequal parts */
    for (int k = 0; k < c->dims; k++) all *= c->part[1][k];
    for (int k = 0; k < c->dims; k++)
        axes |= wefti_layout_dim_axes(c->from, c->dim[k]) | wefti_layout_dim_axes(c->to, c->dim[k]);
    int32_t at[WEFTI_MAX_AXES] = {0};
    int64_t most = 0;
    for (;;) {
        int64_t here = missing(c, at);
        if (here > most) most = here;
        if (all && most == all) return most;
        int a = 0;
        for (; a < c->mesh->axes; a++) {
            if (!(axes >> a & 1u)) continue;
            if (++at[a] < c->mesh->axis[a].size) break;
            at[a] = 0;
        }
        if (a == c->mesh->axes) return most;
    }
}

/* Whether one of the two splits refines the other. */
static bool is_nested(const wefti_dim_split *a, const wefti_dim_split *b) {
    for (int i = 0; i < a->count && i < b->count; i++)
        if (a->axis[i] != b->axis[i]) return false;
    return true;
}

/* The largest number of missing elements in closed form. Requires parts of equal size. Also
 * requires that each part lies within another part or moves as a whole. */
static int64_t missing_evenly(const change *c, wefti_transfer_kind kind) {
    int64_t wanted = 1, had = 1;
    for (int k = 0; k < c->dims; k++) {
        int d = c->dim[k];
        int64_t have = c->whole->shape[d] / wefti_layout_parts(c->from, c->mesh, d);
        int64_t want = c->whole->shape[d] / wefti_layout_parts(c->to, c->mesh, d);
        wanted *= want;
        had *= have < want ? have : want;
    }
    return kind == WEFTI_TRANSFER_PERMUTE ? wanted : wanted - had;
}

static int64_t received(const wefti_mesh *mesh, const weft_desc *whole, const wefti_layout *from,
                        const wefti_move *move) {
    change c = {.mesh = mesh, .whole = whole, .from = from, .to = &move->to};
    int64_t rest = (int64_t)weft_dtype_bytes(whole->dtype),
            g = wefti_mesh_product(mesh, move->axes);
    bool even = true;
    for (int d = 0; d < from->rank; d++) {
        const wefti_dim_split *have = &from->dim[d], *want = &move->to.dim[d];
        int32_t have_parts = wefti_layout_parts(from, mesh, d);
        int32_t want_parts = wefti_layout_parts(&move->to, mesh, d);
        int64_t n = whole->shape[d];
        if (same_split(have, want)) {
            rest *= largest_part(n, want, want_parts);
            continue;
        }
        c.part[0][c.dims] = is_even(n, have, have_parts) ? n / have_parts : 0;
        c.part[1][c.dims] = is_even(n, want, want_parts) ? n / want_parts : 0;
        c.dim[c.dims++] = d;
        even = even && is_even(n, have, have_parts) && is_even(n, want, want_parts) &&
               (move->transfer == WEFTI_TRANSFER_PERMUTE || is_nested(have, want));
    }
    if (move->transfer == WEFTI_TRANSFER_ALL_REDUCE) {
        int64_t rounds = 2 * (g - 1);
        return rest / g * rounds + (rest % g * rounds + g - 1) / g;
    }
    if (move->transfer == WEFTI_TRANSFER_REDUCE_SCATTER)
        return (g - 1) * wefti_layout_bytes(&move->to, mesh, whole);
    return rest * (even ? missing_evenly(&c, move->transfer) : most_missing(&c));
}

double wefti_move_seconds(const wefti_mesh *mesh, wefti_axes axes, int64_t bytes) {
    wefti_link slowest = {0, 0};
    for (int a = 0; a < mesh->axes; a++) {
        if (!(axes >> a & 1u)) continue;
        const wefti_link *link = &mesh->axis[a].link;
        if (link->latency > slowest.latency) slowest.latency = link->latency;
        if (link->seconds_per_byte > slowest.seconds_per_byte)
            slowest.seconds_per_byte = link->seconds_per_byte;
    }
    return slowest.latency + (double)bytes * slowest.seconds_per_byte;
}

void wefti_move_cost(const wefti_mesh *mesh, const weft_desc *whole, const wefti_layout *from,
                     wefti_move *move) {
    bool local = move->kind != WEFTI_MOVE_TRANSFER;
    move->bytes = local ? 0 : received(mesh, whole, from, move);
    move->seconds = local ? 0 : wefti_move_seconds(mesh, move->axes, move->bytes);
}
