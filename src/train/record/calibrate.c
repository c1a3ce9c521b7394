/* Corrects a machine file by what a run measured: weft_audit_calibrate (weft/audit.h).
 *
 * 1. step_seconds becomes the time that the busiest rank spent outside of kernels, transfers and
 * copies to and from lower tiers.
 * 2. The curves of products and of memory are scaled, so that the sums over all kernels are right.
 *    Ops that the run did not have are thus corrected too. A machine that has factors of ops keeps
 *    its curves, since the factors belong to them.
 * 3. Each op gets the factor between its measured and its computed time, by size. Factors of other
 *    sizes stay.
 * 4. Links are scaled by the transfers that nothing overlapped. If all ranks do the same, the mean
 * of the ranks counts: they wait for each other by turns, and this time belongs to the step.
 *    Otherwise the rank that waited least counts: the others also waited for it. Where ranks share
 *    processors, most of their waits is computing of others: the processors' time counts that no
 *    kernel took. If ranks differ, this has other reasons too, and only the transfers' own time on
 *    processors counts. If kernels overlap with most of a level's transfers, the others are short
 * and tell nothing about its rate: only its latency is scaled. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cost/cost.h"
#include "train/record/compare.h"
#include "weft/audit.h"

static const char source[] = "measured (weft audit --calibrate)";

/* ---- kernels ---- */

/* The kernel's time without its launch and without the op's factor. */
static double formula(const wefti_device_model *d, const wefti_run_record_row *row) {
    const double seconds =
        row->product ? wefti_product_seconds(d, row->arithmetic, NULL, row->flops, row->bytes)
                     : wefti_vector_seconds(d, row->flops, row->bytes);
    return seconds - d->launch_seconds.value;
}

static double work_of(const wefti_run_record_row *row) {
    return row->product ? row->flops : row->bytes;
}

/* All kernels of all ranks, with equal ones together, without their launches. Where ranks share
 * processors, their times on a processor count: a kernel may have run at once, since the others
 * waited for transfers, or after them. Where these times are not known, kernels are taken to have
 * had their part of a processor all the time. */
static weft_status collect(const wefti_run_record *r, wefti_run_record_rows *out) {
    const double launch = r->machine->device.launch_seconds.value;
    const double sharing = wefti_model_sharing(r->machine, r->predicted.devices);
    for (int32_t i = 0; i < r->measured.count; i++)
        for (int64_t k = 0; k < r->measured.ranks[i].rows.count; k++) {
            wefti_run_record_row row = r->measured.ranks[i].rows.items[k];
            row.seconds = sharing > 1 && row.processor > 0 ? row.processor : row.seconds / sharing;
            const double net = row.seconds - row.calls * launch;
            row.seconds = net > 0.1 * row.seconds ? net : 0.1 * row.seconds;
            if (row.kind == WEFTI_RUN_RECORD_KERNEL) WEFT_TRY(wefti_run_record_add(out, &row));
        }
    return WEFT_OK;
}

/* Multiplies all rates. */
static weft_status scale_curve(wefti_machine_model *m, wefti_curve *curve, double factor) {
    if (!curve->count) return WEFT_OK;
    double *rate = wefti_arena_alloc(m->arena, (size_t)curve->count * sizeof *rate);
    WEFT_REQUIRE(rate, WEFT_E_NOMEM, "no memory for a machine");
    for (int32_t i = 0; i < curve->count; i++) {
        const double scaled = curve->rate[i] * factor;
        rate[i] = scaled > 1 ? scaled : 1;
    }
    curve->rate = rate;
    curve->source = source;
    return WEFT_OK;
}

static void scale_figure(wefti_figure *figure, double factor, double least) {
    if (!figure->source) return;
    figure->value *= factor;
    if (figure->value < least) figure->value = least;
    figure->source = source;
}

/* Of the kernels of one kind: computed by measured seconds; 1 without any. */
static double ratio_of(const wefti_run_record_rows *rows, const wefti_device_model *d, bool product,
                       wefti_arithmetic arithmetic) {
    double computed = 0, measured = 0;
    for (int64_t i = 0; i < rows->count; i++) {
        const wefti_run_record_row *row = &rows->items[i];
        if (row->product != product || (product && row->arithmetic != arithmetic)) continue;
        computed += row->calls * formula(d, row);
        measured += row->seconds;
    }
    return computed > 0 && measured > 0 ? computed / measured : 1;
}

static weft_status scale_kernels(const wefti_run_record_rows *rows, wefti_machine_model *m) {
    wefti_device_model *d = &m->device;
    const wefti_device_model before = *d;
    const double memory = ratio_of(rows, &before, false, WEFTI_ARITHMETIC_F32);
    WEFT_TRY(scale_curve(m, &d->memory, memory));
    scale_figure(&d->memory_bytes_per_second, memory, 1);
    scale_figure(&d->vector_flops, memory, 1);
    for (int a = 0; a < WEFTI_ARITHMETICS; a++) {
        const double factor = ratio_of(rows, &before, true, (wefti_arithmetic)a);
        if (factor == 1) continue;
        WEFT_TRY(scale_curve(m, &d->product[a], factor));
        scale_figure(&d->peak_flops[a], factor, 1);
    }
    return WEFT_OK;
}

/* ---- factors of ops ---- */

typedef struct factor_point {
    char key[64];
    double work, computed, measured;
} factor_point;

static int compare_points(const void *a, const void *b) {
    const factor_point *x = a, *y = b;
    const int by_key = strcmp(x->key, y->key);
    return by_key ? by_key : x->work < y->work ? -1 : x->work > y->work;
}

/* The points in order, with one for each size of an op. */
static int64_t list_points(const wefti_run_record_rows *rows, const wefti_device_model *d,
                           factor_point *points) {
    int64_t count = 0, kept = 0;
    for (int64_t i = 0; i < rows->count; i++) {
        const wefti_run_record_row *row = &rows->items[i];
        factor_point p = {.work = work_of(row),
                          .computed = row->calls * formula(d, row),
                          .measured = row->seconds};
        if (p.work < 1 || p.computed <= 0 || p.measured <= 0) continue;
        /* additions in place have no factor of their own: the simulator counts them as copies */
        const char *name = !strcmp(row->name, "add") && row->flops == 0 ? "copy" : row->name;
        (void)wefti_model_op_key(name, row->arithmetic, p.key);
        points[count++] = p;
    }
    qsort(points, (size_t)count, sizeof *points, compare_points);
    for (int64_t i = 0; i < count; i++) {
        factor_point *last = kept ? &points[kept - 1] : NULL;
        if (last && compare_points(last, &points[i]) == 0) {
            last->computed += points[i].computed;
            last->measured += points[i].measured;
        } else {
            points[kept++] = points[i];
        }
    }
    return kept;
}

/* A curve of points[0, count), at most WEFTI_CURVE_POINTS of them. */
static weft_status make_factor(wefti_machine_model *m, const factor_point *points, int64_t count,
                               wefti_op_curve *out) {
    static const double least = 1e-6;
    if (count > WEFTI_CURVE_POINTS) count = WEFTI_CURVE_POINTS;
    double *work = wefti_arena_alloc(m->arena, 2 * (size_t)count * sizeof *work);
    out->op = wefti_arena_strdup(m->arena, points->key);
    WEFT_REQUIRE(work && out->op, WEFT_E_NOMEM, "no memory for a machine");
    double *rate = work + count;
    for (int64_t i = 0; i < count; i++) {
        const double factor = points[i].measured / points[i].computed;
        work[i] = points[i].work;
        rate[i] = factor > least ? factor : least;
    }
    out->curve = (wefti_curve){source, work, rate, (int32_t)count};
    return WEFT_OK;
}

/* Adds the factors that the machine has already, of sizes that the run did not have. Returns the
 * number of all points, in order. */
static int64_t add_known(const wefti_device_model *d, factor_point *points, int64_t count) {
    const int64_t own = count;
    for (int32_t i = 0; i < d->op_factor_count; i++) {
        const wefti_op_curve *known = &d->op_factors[i];
        for (int32_t k = 0; k < known->curve.count; k++) {
            factor_point p = {
                .work = known->curve.work[k], .computed = 1, .measured = known->curve.rate[k]};
            (void)snprintf(p.key, sizeof p.key, "%.63s", known->op);
            bool found = false;
            for (int64_t n = 0; n < own && !found; n++) found = compare_points(&points[n], &p) == 0;
            if (!found) points[count++] = p;
        }
    }
    qsort(points, (size_t)count, sizeof *points, compare_points);
    return count;
}

static int64_t known_points(const wefti_device_model *d) {
    int64_t count = 0;
    for (int32_t i = 0; i < d->op_factor_count; i++) count += d->op_factors[i].curve.count;
    return count;
}

static weft_status set_factors(const wefti_run_record_rows *rows, wefti_machine_model *m) {
    wefti_device_model *d = &m->device;
    factor_point *points;
    WEFT_NEW_ARRAY(points, factor_point, rows->count + known_points(d) + 1);
    const int64_t count = add_known(d, points, list_points(rows, d, points));
    d->op_factors = wefti_arena_alloc(m->arena, WEFTI_OP_FACTORS_MAX * sizeof *d->op_factors);
    d->op_factor_count = 0;
    weft_status status =
        d->op_factors ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a machine");
    for (int64_t i = 0, end; i < count && status >= 0; i = end) {
        for (end = i + 1; end < count && !strcmp(points[end].key, points[i].key);) end++;
        if (d->op_factor_count == WEFTI_OP_FACTORS_MAX) break;
        status = make_factor(m, &points[i], end - i, &d->op_factors[d->op_factor_count]);
        if (status >= 0) d->op_factor_count++;
    }
    wefti_free(points);
    return status;
}

/* ---- links ---- */

/* Whether all ranks are predicted to take about equally long for their kernels, and for their
 * transfers. One rank alone may compute the norm of gradients. */
static bool ranks_are_equal(const wefti_run_record *r) {
    const wefti_run_record_rank *first = r->predicted.ranks;
    for (int32_t i = 1; i < r->predicted.count; i++)
        for (int kind = 0; kind < WEFTI_RUN_RECORD_COPY; kind++) {
            const double a = wefti_run_record_seconds(&first->rows, (wefti_run_record_kind)kind);
            const double b = wefti_run_record_seconds(&first[i].rows, (wefti_run_record_kind)kind);
            if (!(a <= 1.1 * b && b <= 1.1 * a)) return false;
        }
    return true;
}

/* The time of a call of a transfer: of the ranks' mean, or on the rank where it is least. 0: it was
 * not measured, or it overlaps with kernels. */
static double seconds_of_call(const wefti_run_record *r, const wefti_run_record_row *wanted) {
    double least = 0, sum = 0, calls = 0;
    const bool moves = r->machine->level[wanted->level].moved_in_waits;
    for (int32_t i = 0; i < r->measured.count; i++)
        for (int64_t k = 0; k < r->measured.ranks[i].rows.count; k++) {
            const wefti_run_record_row *row = &r->measured.ranks[i].rows.items[k];
            if (!wefti_run_record_same(row, wanted) || row->calls <= 0) continue;
            if (!moves && row->under_way > 1.25 * row->seconds) return 0;
            const double seconds = row->seconds / row->calls;
            if (least == 0 || seconds < least) least = seconds;
            sum += row->seconds;
            calls += row->calls;
        }
    return calls > 0 && ranks_are_equal(r) ? sum / calls : least;
}

/* Seconds of a step outside of kernels, transfers and copies, on the busiest rank. */
static double rest_of(const wefti_run_record *r) {
    double busiest = 0;
    for (int32_t i = 0; i < r->measured.count; i++) {
        const wefti_run_record_rows *rows = &r->measured.ranks[i].rows;
        const double busy = wefti_run_record_busy(rows);
        if (busy > busiest) busiest = busy;
    }
    const double rest = r->measured.step_seconds - busiest;
    return rest > 0 ? rest : 0;
}

static double processor_seconds(const wefti_run_record_rows *rows, wefti_run_record_kind kind) {
    double sum = 0;
    for (int64_t i = 0; i < rows->count; i++)
        if (rows->items[i].kind == kind) sum += rows->items[i].processor;
    return sum;
}

/* The part of their waits that ranks needed a processor for, if they share processors; else 1. */
static double own_part(const wefti_run_record *r) {
    const double sharing = wefti_model_sharing(r->machine, r->predicted.devices);
    const double share = (r->measured.step_seconds - rest_of(r)) / sharing;
    const bool equal = ranks_are_equal(r);
    double waits = 0, own = 0;
    if (sharing <= 1) return 1;
    for (int32_t i = 0; i < r->measured.count; i++) {
        const wefti_run_record_rows *rows = &r->measured.ranks[i].rows;
        const double kernels = processor_seconds(rows, WEFTI_RUN_RECORD_KERNEL),
                     least = processor_seconds(rows, WEFTI_RUN_RECORD_TRANSFER);
        if (rows->count && !(kernels > 0)) return 1; /* not known */
        waits += wefti_run_record_seconds(rows, WEFTI_RUN_RECORD_TRANSFER);
        own += equal && share - kernels > least ? share - kernels : least;
    }
    return waits > 0 && own < waits ? own / waits : 1;
}

/* Seconds of the transfers of a level: predicted for all of them; predicted and measured for those
 * that nothing overlapped. */
typedef struct level_seconds {
    double all, predicted, measured;
} level_seconds;

static void add_transfers(const wefti_run_record *r, const wefti_run_record_rows *rows,
                          level_seconds *levels) {
    for (int64_t k = 0; k < rows->count; k++) {
        const wefti_run_record_row *row = &rows->items[k];
        if (row->kind != WEFTI_RUN_RECORD_TRANSFER || row->level >= WEFTI_LEVELS_MAX) continue;
        const double part = r->machine->level[row->level].moved_in_waits ? own_part(r) : 1;
        const double seconds = part * seconds_of_call(r, row);
        levels[row->level].all += row->seconds;
        if (seconds <= 0) continue;
        levels[row->level].predicted += row->seconds;
        levels[row->level].measured += row->calls * seconds;
    }
}

/* Scales the levels up to that of the transfers' groups. */
static weft_status scale_links(const wefti_run_record *r, wefti_machine_model *m) {
    level_seconds seconds[WEFTI_LEVELS_MAX] = {{0}};
    for (int32_t i = 0; i < r->predicted.count; i++)
        add_transfers(r, &r->predicted.ranks[i].rows, seconds);
    for (int32_t l = 0; l < m->level_count; l++) {
        const level_seconds *x = &seconds[l];
        if (!(x->predicted > 0) || !(x->measured > 0)) continue;
        const double factor = x->predicted / x->measured;
        wefti_level *level = &m->level[l];
        scale_figure(&level->latency_seconds, 1 / factor, 0);
        if (x->predicted < 0.5 * x->all) continue;
        scale_figure(&level->bytes_per_second, factor, 1);
        scale_figure(&level->uplink_bytes_per_second, factor, 1);
        WEFT_TRY(scale_curve(m, &level->all_reduce, factor));
    }
    return WEFT_OK;
}

/* ---- all of it ---- */

static weft_status calibrate(wefti_run_record *r, char **out) {
    wefti_machine_model *m = r->machine;
    wefti_run_record_rows rows = {0};
    wefti_text text = {0};
    weft_status status = collect(r, &rows);
    if (status >= 0) {
        if (!m->device.op_factor_count) status = scale_kernels(&rows, m);
        m->device.step_seconds = (wefti_figure){rest_of(r), source};
    }
    if (status >= 0) status = set_factors(&rows, m);
    if (status >= 0) status = scale_links(r, m);
    if (status >= 0) status = wefti_model_check(m);
    wefti_run_record_rows_free(&rows);
    WEFT_TRY(status);
    wefti_model_print(m, &text);
    *out = wefti_text_take(&text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a machine file");
    return WEFT_OK;
}

weft_status weft_audit_calibrate(const char *directory, char **out) {
    wefti_run_record record;
    WEFT_REQUIRE(out, WEFT_E_ARG, "weft_audit_calibrate needs a place for the machine");
    weft_status status = wefti_run_record_open(directory, &record);
    if (status >= 0 && !record.machine)
        status = WEFT_RAISE(WEFT_E_NOT_FOUND,
                            "%s/record/prediction.json does not exist: the run had no machine; "
                            "give it one (`weft machine measure`, then the key `machine: "
                            "this-machine`)",
                            directory);
    if (status >= 0) status = calibrate(&record, out);
    wefti_run_record_close(&record);
    return status < 0 ? wefti_note(status, __func__, __FILE__, __LINE__) : WEFT_OK;
}
