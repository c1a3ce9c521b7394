/* Seconds of kernels: see cost.h. */
#include <math.h>

#include "cost/cost.h"
#include "device/disk.h"

/* Smaller tiles, as parts of the large one, and the part of its rate that they reach. Assumed: a
 * tile of half the elements loads 1.5 times as much per element. */
static const struct {
    double rows, columns, rate;
} tiles[] = {{1, 1, 1}, {1, 0.5, 0.92}, {0.5, 0.5, 0.85}, {0.5, 0.25, 0.7}, {0.25, 0.25, 0.5}};

double wefti_tile_use(const wefti_device_model *d, const wefti_product_shape *s) {
    double best = 0;
    if (!d->units.source) return 1;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        double rows = d->tile_rows.value * tiles[i].rows;
        double columns = d->tile_columns.value * tiles[i].columns;
        double count = s->batch * ceil(s->rows / rows) * ceil(s->columns / columns);
        double waves = ceil(count / d->units.value);
        double elements = s->batch * s->rows * s->columns;
        double use = elements / (rows * columns * d->units.value * waves) * tiles[i].rate;
        if (use > best) best = use;
    }
    return best < 1 ? best : 1;
}

/* Rows that are multiples of the key, as a part of aligned_bytes, reach this part of the rate.
 * Fitted: published runs of width 14400 and 13824 of one model family on A100 (BigScience, 2022).
 */
static const struct {
    double part, rate;
} alignments[] = {{1, 1}, {0.5, 0.97}, {0.25, 0.92}, {0.125, 0.8}, {0.0625, 0.5}, {0, 0.35}};

double wefti_shape_use(const wefti_device_model *d, wefti_arithmetic arithmetic,
                       const wefti_product_shape *s) {
    static const double element[WEFTI_ARITHMETICS] = {
        [WEFTI_ARITHMETIC_F64] = 8,  [WEFTI_ARITHMETIC_F32] = 4, [WEFTI_ARITHMETIC_TF32] = 4,
        [WEFTI_ARITHMETIC_BF16] = 2, [WEFTI_ARITHMETIC_F16] = 2, [WEFTI_ARITHMETIC_F8] = 1};
    double use = 1;
    if (d->tile_depth.source) use *= s->depth / (s->depth + d->tile_depth.value);
    if (!d->aligned_bytes.source) return use;
    double worst = 1;
    const double sizes[] = {s->columns, s->depth};
    for (int i = 0; i < 2; i++) {
        size_t a = 0;
        while (alignments[a].part > 0 && fmod(sizes[i] * element[arithmetic],
                                              alignments[a].part * d->aligned_bytes.value) > 0)
            a++;
        if (alignments[a].rate < worst) worst = alignments[a].rate;
    }
    return use * worst;
}

static double memory_seconds(const wefti_device_model *d, double bytes) {
    if (bytes <= 0) return 0;
    if (d->memory.count) return bytes / wefti_curve_rate(&d->memory, bytes);
    double rate = d->memory_bytes_per_second.value;
    return bytes / (d->memory_efficiency.source ? rate * d->memory_efficiency.value : rate);
}

double wefti_product_seconds(const wefti_device_model *d, wefti_arithmetic arithmetic,
                             const wefti_product_shape *shape, double flops, double bytes) {
    const wefti_curve *curve = &d->product[arithmetic];
    double memory = memory_seconds(d, bytes), use = 1;
    double rate =
        curve->count ? wefti_curve_rate(curve, flops) : wefti_model_product_rate(d, arithmetic);
    if (shape && !curve->count)
        use = wefti_tile_use(d, shape) * wefti_shape_use(d, arithmetic, shape);
    double compute = use > 0 ? flops / (rate * use) : 0;
    return d->launch_seconds.value + (compute > memory ? compute : memory);
}

double wefti_vector_seconds(const wefti_device_model *d, double flops, double bytes) {
    double compute = flops / d->vector_flops.value, memory = memory_seconds(d, bytes);
    return d->launch_seconds.value + (compute > memory ? compute : memory);
}

/* Corrects a kernel's time, but not its launch. */
static double corrected(const wefti_device_model *d, const char *op, wefti_arithmetic arithmetic,
                        double work, double seconds) {
    const double launch = d->launch_seconds.value;
    return launch + (seconds - launch) * wefti_model_op_factor(d, op, arithmetic, work);
}

double wefti_copy_seconds(const wefti_machine_model *m, double bytes) {
    const wefti_device_model *d = &m->device;
    return corrected(d, "copy", WEFTI_ARITHMETIC_F32, 2 * bytes,
                     d->launch_seconds.value + memory_seconds(d, 2 * bytes));
}

/* ---- copies to and from lower tiers ---- */

/* Bytes/s of a disk that the machine says nothing about. */
#define ASSUMED_DISK_RATE 1e9

const wefti_tier_rates *wefti_tier_rates_of(const wefti_machine_model *m, wefti_space tier) {
    return tier == WEFTI_SPACE_DISK ? &m->device.disk_bytes_per_second
                                    : &m->device.host_bytes_per_second;
}

double wefti_tier_seconds(const wefti_machine_model *m, wefti_space tier, wefti_tier_way way,
                          double bytes, int32_t ranks) {
    const wefti_tier_rates *rates = wefti_tier_rates_of(m, tier);
    const bool disk = tier == WEFTI_SPACE_DISK;
    const int32_t here = wefti_model_per_host(m);
    const int32_t sharing = !disk ? 1 : here < ranks ? here : ranks;
    if (!rates->source && !disk) return wefti_copy_seconds(m, bytes);
    const double block = disk && bytes > WEFTI_DISK_BLOCK ? WEFTI_DISK_BLOCK : bytes;
    const double rate = rates->source ? wefti_tier_rate(rates, way, block) : ASSUMED_DISK_RATE;
    return bytes * sharing / rate;
}

/* ---- nodes ---- */

wefti_arithmetic wefti_node_arithmetic(const weft_node *n) {
    if (wefti_node_is_f8(n)) return WEFTI_ARITHMETIC_F8;
    bool bf16 = false, f16 = false, f64 = false;
    for (int i = 0; i < n->inputs; i++) {
        const weft_desc *x = wefti_in(n, i);
        bf16 |= x && x->dtype == WEFT_BF16;
        f16 |= x && x->dtype == WEFT_F16;
        f64 |= x && x->dtype == WEFT_F64;
    }
    return bf16  ? WEFTI_ARITHMETIC_BF16
           : f16 ? WEFTI_ARITHMETIC_F16
           : f64 ? WEFTI_ARITHMETIC_F64
                 : WEFTI_ARITHMETIC_F32;
}

static bool has_factor(const int8_t dims[WEFT_MAX_RANK], int factor) {
    for (int d = 0; d < WEFT_MAX_RANK; d++)
        if (dims[d] == factor) return true;
    return false;
}

bool wefti_node_product(const weft_node *n, wefti_product_shape *out) {
    wefti_split_rule rule;
    if (n->op->work != WEFTI_WORK_PRODUCT || !n->op->split || n->inputs < 2) return false;
    wefti_rule_begin(&rule);
    if (n->op->split(n, &rule) < 0) return false;
    *out = (wefti_product_shape){1, 1, 1, 1};
    for (int f = 0; f < rule.factors; f++) {
        const double size = (double)rule.factor[f].size;
        const bool in0 = has_factor(rule.in[0], f), in1 = has_factor(rule.in[1], f);
        const bool result = has_factor(rule.out[0], f);
        if (!result)
            out->depth *= size;
        else if (in0 && in1)
            out->batch *= size;
        else
            *(in1 ? &out->columns : &out->rows) *= size;
    }
    return true;
}

/* Casts read the operands, and write them in 8 bits, which the product reads. *io_bytes: those of
 * the product. */
static double cast_seconds(const wefti_device_model *d, const weft_node *n, double *io_bytes) {
    double seconds = 0;
    for (int i = 0; i < 2; i++) {
        const weft_desc *x = wefti_in(n, i);
        const double elements = (double)weft_desc_elems(x), bytes = (double)weft_desc_bytes(x);
        seconds += wefti_vector_seconds(d, elements, bytes + elements);
        *io_bytes = fmax(elements, *io_bytes - (bytes - elements));
    }
    return seconds;
}

static double device_seconds(const wefti_machine_model *m, const weft_node *n,
                             const wefti_cost *cost) {
    wefti_product_shape shape;
    const wefti_device_model *d = &m->device;
    const wefti_arithmetic arithmetic = wefti_node_arithmetic(n);
    if (n->op->work != WEFTI_WORK_PRODUCT)
        return corrected(d, n->op->name, arithmetic, cost->bytes,
                         wefti_vector_seconds(d, cost->flops, cost->bytes));
    double bytes = cost->bytes;
    const double casts = wefti_node_is_f8(n) ? cast_seconds(d, n, &bytes) : 0;
    /* Tiles need the product's own sizes: those of attention and of several products in one node do
     * not have this form. */
    bool plain = d->units.source && wefti_node_product(n, &shape);
    double flops = plain ? 2 * shape.batch * shape.rows * shape.columns * shape.depth : 0;
    plain = plain && fabs(flops - cost->flops) <= 0.05 * cost->flops;
    return casts + corrected(d, n->op->name, arithmetic, cost->flops,
                             wefti_product_seconds(d, arithmetic, plain ? &shape : NULL,
                                                   cost->flops, bytes));
}

double wefti_node_model_seconds(const wefti_machine_model *m, wefti_space space, const weft_node *n,
                                const wefti_cost *cost) {
    const double seconds = device_seconds(m, n, cost);
    const wefti_figure *rate = &m->device.host_memory_bytes_per_second;
    return space == WEFTI_SPACE_HOST && rate->source ? fmax(seconds, cost->bytes / rate->value)
                                                     : seconds;
}
