/* Products of a microbatch on the devices of a split, from the line of one device: see parts.h.
 *
 * Many splits ask for the same sizes, so a table remembers the sums of each call. */
#include <math.h>
#include <string.h>

#include "search/joint/parts.h"

/* The part of the rate that a product of these sizes reaches, with room for rounding. */
double wefti_joint_product_use(const wefti_device_model *d, wefti_arithmetic arithmetic,
                               const wefti_product_shape *s) {
    const double use = (1 + 1e-5) * wefti_tile_use(d, s) * wefti_shape_use(d, arithmetic, s);
    return use < 1 ? use : 1;
}

/* One size of a product is in `by` parts. *work: how many times as much the device with most has as
 * in equal parts. False: not known, since whole heads may be split. */
static bool divide(double *size, double by, double *work) {
    if (*size < by) {
        *work *= by / *size;
        *size = 1;
        return true;
    }
    if (fmod(*size, by) > 0) return false;
    *size /= by;
    return true;
}

/* A device's part of a product, as a rate of equal parts. */
static double part_use(const wefti_device_model *d, const wefti_joint_product *p,
                       const double size[4], double work) {
    const wefti_product_shape shape = {size[0], size[1], size[2], size[3]};
    return wefti_joint_product_use(d, p->arithmetic, &shape) / work;
}

enum { PRODUCT_SIZES = 4, PRODUCT_UNSPLIT = 4, PRODUCT_SPLITS = 5 };

/* The greatest use with an axis of `by` devices on any of the sizes, or on none: then each device
 * has all of it. An axis of the sequence splits a size that grows with the samples. */
static double best_use(const wefti_device_model *d, const wefti_joint_product *p,
                       const double size[PRODUCT_SIZES], int32_t tensor, int32_t context) {
    double best = 0;
    for (int i = tensor > 1 ? 0 : PRODUCT_UNSPLIT; i < PRODUCT_SPLITS; i++)
        for (int k = context > 1 ? 0 : PRODUCT_UNSPLIT; k < PRODUCT_SPLITS; k++) {
            double part[PRODUCT_SIZES], work = 1;
            bool known = true;
            if (k < PRODUCT_UNSPLIT && p->more[k] <= 0) continue;
            memcpy(part, size, sizeof part);
            if (i < PRODUCT_UNSPLIT) known = divide(&part[i], tensor, &work);
            if (k < PRODUCT_UNSPLIT) known = known && divide(&part[k], context, &work);
            if (i == PRODUCT_UNSPLIT) work *= tensor;
            if (k == PRODUCT_UNSPLIT) work *= context;
            if (!known) return 1;
            best = wefti_larger(best, part_use(d, p, part, work));
        }
    return wefti_smaller(best, 1);
}

static void sizes_of(const wefti_joint_product *p, double samples, double size[PRODUCT_SIZES]) {
    for (int n = 0; n < PRODUCT_SIZES; n++) size[n] = p->one[n] + p->more[n] * (samples - 1);
}

/* Seconds of a product for so many samples, at least, with one of its sizes split over `tensor`
 * devices and one that grows with the samples over `context`. Not `even`: heads or experts are not
 * split into equal parts, so nothing is known of its sizes. */
static double product_least(const wefti_device_model *d, const wefti_joint_product *p,
                            double samples, int32_t tensor, int32_t context, bool even) {
    const double each = samples / tensor / context;
    double size[PRODUCT_SIZES];
    sizes_of(p, samples, size);
    const double use = even ? best_use(d, p, size, tensor, context) : 1;
    return p->factor * wefti_larger(each * p->flops / (p->rate * use), each * p->memory);
}

/* The builder splits a product over an axis for least seconds with its neighbours, so with more
 * samples it may split another size than with one: then some size is whole. Split sequences have
 * more ways: all of the rate. */
double wefti_joint_product_of_line(const wefti_device_model *d, const wefti_joint_product *p,
                                   double samples, int32_t tensor, int32_t context) {
    double size[PRODUCT_SIZES], use = context > 1 ? 1 : 0;
    if (tensor == 1 && context == 1) return product_least(d, p, samples, 1, 1, true);
    sizes_of(p, samples, size);
    for (int i = 0; context == 1 && i < PRODUCT_SIZES; i++) {
        double whole[PRODUCT_SIZES];
        memcpy(whole, size, sizeof whole);
        whole[i] *= tensor;
        use = wefti_larger(use, best_use(d, p, whole, tensor, 1));
    }
    return p->factor * wefti_larger(samples * p->flops / (p->rate * use), samples * p->memory);
}

/* ---- the table ---- */

typedef struct wefti_joint_products_key {
    double samples;
    int32_t recompute, tensor, context, apart; /* apart: experts are on several devices */
} products_key;

struct wefti_joint_products {
    products_key key;
    wefti_joint_product_sum (*call)[2]; /* [shape.calls]; NULL: a free slot */
};

static uint64_t slot_of(const products_key *k) {
    uint64_t x;
    memcpy(&x, &k->samples, sizeof x);
    const uint64_t more[] = {(uint64_t)k->recompute, (uint64_t)k->tensor, (uint64_t)k->context,
                             (uint64_t)k->apart};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        x = (x ^ more[i]) * 0x9E3779B97F4A7C15u;
        x ^= x >> 29;
    }
    return x;
}

static bool is_equal(const products_key *a, const products_key *b) {
    return a->samples == b->samples && a->recompute == b->recompute && a->tensor == b->tensor &&
           a->context == b->context && a->apart == b->apart;
}

/* The entry of the key, or the free slot for it. */
static wefti_joint_products *look_up(const wefti_joint *j, const products_key *k) {
    const uint64_t mask = (uint64_t)j->products_cap - 1;
    uint64_t i = slot_of(k) & mask;
    while (j->products[i].call && !is_equal(&j->products[i].key, k)) i = (i + 1) & mask;
    return &j->products[i];
}

/* The table is at most half full. */
static weft_status grow(wefti_joint *j) {
    enum { FIRST = 1024 };
    const int64_t before = j->products_cap;
    wefti_joint_products *old = j->products, *new;
    if (2 * j->products_count < before) return WEFT_OK;
    WEFT_NEW_ARRAY(new, wefti_joint_products, before ? 2 * before : FIRST);
    j->products = new;
    j->products_cap = before ? 2 * before : FIRST;
    for (int64_t i = 0; i < before; i++)
        if (old[i].call) *look_up(j, &old[i].key) = old[i];
    wefti_free(old);
    return WEFT_OK;
}

/* Whether products of lines tell their sizes on each device: heads and sequences in equal parts. */
static bool splits_evenly(const wefti_joint *j, const products_key *k) {
    const weft_model_config *c = j->problem->source.config;
    return !c || (c->heads % k->tensor == 0 && c->context % k->context == 0);
}

weft_status wefti_joint_products_find(wefti_joint *j, const wefti_degrees *d,
                                      const wefti_joint_line *line, double samples,
                                      const wefti_joint_product_sum (**out)[2]) {
    const wefti_device_model *device = &j->problem->machine->device;
    const weft_model_config *config = j->problem->source.config;
    products_key key;
    memset(&key, 0, sizeof key); /* keys are compared as bytes */
    key.samples = samples, key.recompute = line->key.recompute;
    key.tensor = d->tensor, key.context = d->context,
    key.apart = d->expert > 1 || (config && config->experts && d->tensor > 1);
    WEFT_TRY(grow(j));
    wefti_joint_products *x = look_up(j, &key);
    if (!x->call) {
        const bool even = splits_evenly(j, &key);
        x->call = wefti_arena_alloc(j->arena, (size_t)j->shape.calls * sizeof *x->call);
        WEFT_REQUIRE(x->call, WEFT_E_NOMEM, "no memory for a search");
        x->key = key;
        j->products_count++;
        for (int64_t i = 0; i < line->product_count; i++) {
            const wefti_joint_product *p = &line->products[i];
            /* Products of several experts have other sizes if these are on several devices. */
            const bool known = even && (!key.apart || p->one[0] <= 1);
            wefti_joint_product_sum *sum = &x->call[p->call][p->backward];
            const double seconds =
                product_least(device, p, samples, key.tensor, key.context, known);
            sum->seconds += seconds;
            if (p->flops > 0)
                sum->dearest = wefti_larger(sum->dearest, seconds / samples / p->flops);
        }
    }
    *out = (const wefti_joint_product_sum(*)[2])x->call;
    return WEFT_OK;
}
