/* Gradients of tables as rows: see rows/rows.h. Four ops:
 *
 *     embedding_rows(ids i32 [...], dy [..., dim]; vocab, begin, padding) -> f32 [..., 2 + dim].
 *
 * It puts the operands of embedding_grad together. Each place has its id, as two numbers, and its
 * dy. An id that embedding_grad drops becomes negative.
 *
 *     rows_find(ids i32 [...]; vocab) -> rows i32 [places], place i32 [...].
 *
 * `rows` has each row of a table of `vocab` rows once, in the order in which the ids first name it,
 * then the further look-ups of each (wefti_rows_repeat), and then -1. `place` has the place of each
 * id in `rows`. An id outside the table has place -1.
 *
 *     rows_sum(rows [n, ..., 2 + dim]; vocab, begin, first_column, columns, parts, unit)
 *             -> ids i32 [places], sums [places, columns].
 *
 * It names each row once, in the order in which its operand first has it. `ids` has the number of
 * each row in the piece of a table that holds `vocab` rows from `begin` on. `sums` has the sum of
 * the row's gradients, of the columns from `first_column` on. Unused places have the id -1 and
 * zeros. Terms are added in order. Each of the equal parts of dimension 0, in units of `unit`, has
 * a sum of its own first, as on devices that split a batch.
 *
 *     rows_write(table [vocab, dim], ids i32 [n], rows [n, dim]) -> table, in place.
 *
 * It does table[ids[i]] = rows[i]. An id outside the table is dropped. No id may come twice.
 *
 * To update touched rows, a routine runs rows_sum, then the optimizer's op with these ids. */
#include "rows/rows.h"

#include "layout/layout.h"
#include "ops/common.h"

/* ---- embedding_rows ---- */

static weft_status infer_rows(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_desc *ids = wefti_in(n, 0), *dy = wefti_in(n, 1);
    weft_desc table;
    WEFT_TRY(weft_op_embedding_grad.infer(n, &table, out_count));
    WEFT_REQUIRE(ids->rank + 1 < WEFT_MAX_RANK, WEFT_E_SHAPE, "embedding_rows: the ids are %s",
                 TEXT(ids));
    *out = wefti_op_retyped(dy, table.dtype);
    out->shape[out->rank - 1] += WEFTI_ROWS_ID;
    return WEFT_OK;
}

static weft_status split_rows(const weft_node *n, wefti_split_rule *r) {
    int8_t f[WEFT_MAX_RANK];
    const weft_desc *ids = wefti_in(n, 0), *dy = wefti_in(n, 1);
    wefti_op_factors(r, "m", ids, 0, ids->rank, WEFTI_FACTOR_FREE, f);
    wefti_op_assign(r->in[0], 0, f, 0, ids->rank);
    wefti_op_assign(r->in[1], 0, f, 0, ids->rank);
    wefti_op_assign(r->out[0], 0, f, 0, ids->rank);
    r->in[1][ids->rank] = wefti_op_factor(r, "dim", -1, dy->shape[ids->rank], WEFTI_FACTOR_WHOLE);
    return WEFT_OK;
}

static void cost_rows(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.bytes = wefti_node_bytes(n)};
}

static weft_status reference_rows(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *dy = wefti_in(n, 1);
    const double begin = (double)wefti_attr_int(n, WEFTI_AT_begin),
                 end = begin + (double)wefti_attr_int(n, WEFTI_AT_vocab),
                 padding = (double)wefti_attr_int(n, WEFTI_AT_padding);
    int64_t places = weft_desc_elems(wefti_in(n, 0)), dim = dy->shape[dy->rank - 1];
    for (int64_t i = 0; i < places; i++) {
        const bool kept = in[0][i] >= begin && in[0][i] < end && in[0][i] != padding;
        double *row = out[0] + i * (dim + WEFTI_ROWS_ID);
        *row++ = (double)wefti_rows_high(kept ? (int64_t)in[0][i] : -1);
        *row++ = (double)wefti_rows_low(kept ? (int64_t)in[0][i] : -1);
        memcpy(row, in[1] + i * dim, (size_t)dim * sizeof *row);
    }
    return WEFT_OK;
}

/* ---- rows_find ---- */

static weft_status infer_find(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_desc *ids = wefti_in(n, 0);
    const int64_t vocab = wefti_attr_int(n, WEFTI_AT_vocab), places = weft_desc_elems(ids);
    WEFT_TRY(wefti_op_check_i32(n, 0));
    WEFT_REQUIRE(vocab >= 0 && vocab <= INT32_MAX, WEFT_E_ARG, "rows_find: a table of %lld rows",
                 (long long)vocab);
    WEFT_REQUIRE(places <= INT32_MAX, WEFT_E_SHAPE, "rows_find: %s has too many places", TEXT(ids));
    out[0] = wefti_op_desc(WEFT_I32, 1, &places);
    out[1] = *ids;
    *out_count = 2;
    return WEFT_OK;
}

/* Equal ids may lie anywhere. */
static weft_status split_find(const weft_node *n, wefti_split_rule *r) {
    int8_t f[WEFT_MAX_RANK];
    const weft_desc *ids = wefti_in(n, 0);
    wefti_op_factors(r, "m", ids, 0, ids->rank, WEFTI_FACTOR_WHOLE, f);
    wefti_op_assign(r->in[0], 0, f, 0, ids->rank);
    wefti_op_assign(r->out[1], 0, f, 0, ids->rank);
    return WEFT_OK;
}

static weft_status reference_find(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    const int64_t places = weft_desc_elems(wefti_in(n, 0)),
                  vocab = wefti_attr_int(n, WEFTI_AT_vocab);
    int64_t count = 0;
    for (int64_t i = 0; i < places; i++) {
        int64_t row = 0;
        out[0][i] = out[1][i] = -1.0;
        if (in[0][i] < 0.0 || in[0][i] >= (double)vocab) continue;
        while (row < count && out[0][row] != in[0][i]) row++;
        out[0][row] = in[0][i];
        out[1][i] = (double)row;
        count += row == count;
    }
    int64_t end = count;
    for (int64_t row = 0; row < count; row++) {
        bool again = false;
        for (int64_t i = 0; i < places; i++) {
            if (out[1][i] != (double)row) continue;
            if (again) out[0][end++] = wefti_rows_repeat((int32_t)row);
            again = true;
        }
    }
    return WEFT_OK;
}

/* ---- rows_sum ---- */

static int64_t places_of(const weft_node *n) {
    return wefti_op_count(wefti_in(n, 0), 0, wefti_in(n, 0)->rank - 1);
}

static weft_status infer_sum(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_desc *rows = wefti_in(n, 0);
    const int64_t vocab = wefti_attr_int(n, WEFTI_AT_vocab),
                  begin = wefti_attr_int(n, WEFTI_AT_begin),
                  first = wefti_attr_int(n, WEFTI_AT_first_column),
                  columns = wefti_attr_int(n, WEFTI_AT_columns),
                  parts = wefti_attr_int(n, WEFTI_AT_parts),
                  unit = wefti_attr_int(n, WEFTI_AT_unit);
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_rank(n, 0, 1, WEFT_MAX_RANK));
    const int64_t dim = rows->shape[rows->rank - 1] - WEFTI_ROWS_ID;
    WEFT_REQUIRE(first >= 0 && columns >= 0 && first <= dim && columns <= dim - first, WEFT_E_SHAPE,
                 "rows_sum: %s has not, from column %lld behind the ids on, %lld columns",
                 TEXT(rows), (long long)first, (long long)columns);
    WEFT_REQUIRE(vocab >= 0 && begin >= 0 && vocab <= INT32_MAX && begin <= INT32_MAX - vocab &&
                     parts >= 1 && parts <= INT32_MAX && unit >= 0,
                 WEFT_E_ARG, "rows_sum: %lld rows from %lld on, in %lld parts in units of %lld",
                 (long long)vocab, (long long)begin, (long long)parts, (long long)unit);
    const int64_t places = places_of(n);
    WEFT_REQUIRE(places <= INT32_MAX, WEFT_E_SHAPE, "rows_sum: %s has too many places", TEXT(rows));
    out[0] = wefti_op_desc(WEFT_I32, 1, &places);
    out[1] = wefti_op_desc(rows->dtype, 2, (int64_t[]){places, columns});
    *out_count = 2;
    return WEFT_OK;
}

/* A row's terms may lie anywhere. */
static weft_status split_sum(const weft_node *n, wefti_split_rule *r) {
    int8_t f[WEFT_MAX_RANK];
    const weft_desc *rows = wefti_in(n, 0);
    wefti_op_factors(r, "m", rows, 0, rows->rank, WEFTI_FACTOR_WHOLE, f);
    wefti_op_assign(r->in[0], 0, f, 0, rows->rank);
    return WEFT_OK;
}

static void cost_sum(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.flops = (double)weft_desc_elems(wefti_in(n, 0)),
                        .bytes = wefti_node_bytes(n)};
}

/* The first place of part `part` of dimension 0. */
static int64_t part_begin(const weft_node *n, int32_t part) {
    const weft_desc *rows = wefti_in(n, 0);
    const int32_t parts = (int32_t)wefti_attr_int(n, WEFTI_AT_parts);
    const int64_t whole = rows->rank > 1 ? rows->shape[0] : 1;
    int64_t begin, size;
    if (part >= parts) return places_of(n);
    wefti_part(whole, wefti_attr_int(n, WEFTI_AT_unit), parts, part, &begin, &size);
    return begin * (whole ? places_of(n) / whole : 0);
}

/* Adds the terms of row r, part after part. */
static void sum_row(const weft_node *n, const wefti_rows *rows, int32_t r, const double *in,
                    int64_t width, int64_t columns, double *sum) {
    for (int64_t c = 0; c < columns; c++) {
        double total = 0.0, term = 0.0;
        int64_t end = part_begin(n, 1);
        int32_t part = 0;
        for (int32_t k = rows->begin[r]; k < rows->begin[r + 1]; k++) {
            for (; rows->place[k] >= end; end = part_begin(n, ++part + 1)) {
                total += term;
                term = 0.0;
            }
            term += in[rows->place[k] * width + c];
        }
        sum[c] = total + term;
    }
}

static weft_status reference_sum(const weft_node *n, const wefti_random *random,
                                 const double *const *in, double *const *out) {
    (void)random;
    const int64_t places = places_of(n), columns = wefti_attr_int(n, WEFTI_AT_columns),
                  begin = wefti_attr_int(n, WEFTI_AT_begin),
                  vocab = wefti_attr_int(n, WEFTI_AT_vocab),
                  width = wefti_in(n, 0)->shape[wefti_in(n, 0)->rank - 1];
    int32_t *ids = wefti_alloc((size_t)(places + 1) * sizeof *ids);
    void *memory = wefti_alloc(wefti_rows_bytes(places));
    if (!ids || !memory) {
        wefti_free(ids);
        wefti_free(memory);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for the rows of a gradient");
    }
    for (int64_t i = 0; i < places; i++) {
        const int64_t id = wefti_rows_id(in[0][i * width], in[0][i * width + 1]) - begin;
        ids[i] = id >= 0 && id < vocab ? (int32_t)id : -1;
    }
    wefti_rows rows;
    wefti_rows_find(ids, places, memory, &rows);
    const double *first = in[0] + WEFTI_ROWS_ID + wefti_attr_int(n, WEFTI_AT_first_column);
    for (int32_t r = 0; r < (int32_t)places; r++) {
        out[0][r] = r < rows.count ? (double)rows.ids[r] : -1.0;
        for (int64_t c = 0; c < columns; c++) out[1][r * columns + c] = 0.0;
        if (r < rows.count) sum_row(n, &rows, r, first, width, columns, out[1] + r * columns);
    }
    wefti_free(ids);
    wefti_free(memory);
    return WEFT_OK;
}

/* ---- rows_write ---- */

static weft_status infer_write(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *table = wefti_in(n, 0), *ids = wefti_in(n, 1), *rows = wefti_in(n, 2);
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_rank(n, 0, 2, 2));
    WEFT_TRY(wefti_op_check_i32(n, 1));
    WEFT_TRY(wefti_op_check_rank(n, 1, 1, 1));
    WEFT_TRY(wefti_op_check_shape(n, 2, 2, (int64_t[]){ids->shape[0], table->shape[1]},
                                  "the ids and a row of the table"));
    WEFT_REQUIRE(rows->dtype == table->dtype, WEFT_E_SHAPE, "rows_write: %s into %s: dtypes differ",
                 TEXT(rows), TEXT(table));
    *out = *table;
    return WEFT_OK;
}

static weft_status split_write(const weft_node *n, wefti_split_rule *r) {
    return wefti_rule_from_text(n, "* d, *, * d -> * d", r);
}

static void cost_write(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.bytes = 2.0 * (double)weft_desc_bytes(wefti_in(n, 2)) +
                                 (double)weft_desc_bytes(wefti_in(n, 1))};
}

static weft_status reference_write(const weft_node *n, const wefti_random *random,
                                   const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *table = wefti_in(n, 0);
    const int64_t dim = table->shape[1], count = weft_desc_elems(table);
    for (int64_t i = 0; i < count; i++) out[0][i] = in[0][i];
    for (int64_t i = 0; i < wefti_in(n, 1)->shape[0]; i++)
        if (in[1][i] >= 0.0 && in[1][i] < (double)table->shape[0])
            memcpy(out[0] + (int64_t)in[1][i] * dim, in[2] + i * dim, (size_t)dim * sizeof **out);
    return WEFT_OK;
}

/* ---- tables ---- */

static const wefti_attr attrs_rows[] = {
    WEFTI_I(vocab, 0), WEFTI_I(begin, 0), WEFTI_I(padding, -1), {0}};
static const wefti_attr attrs_find[] = {WEFTI_I(vocab, 0), {0}};
static const wefti_attr attrs_sum[] = {WEFTI_I(vocab, 0),
                                       WEFTI_I(begin, 0),
                                       WEFTI_I(first_column, 0),
                                       WEFTI_I(columns, 0),
                                       WEFTI_I(parts, 1),
                                       WEFTI_I(unit, 1),
                                       {0}};

static const wefti_op_case cases_rows[] = {CASE("vocab=7", "i32[2,3]<7", "f32[2,3,5]"),
                                           CASE("vocab=3", "i32[9]<3", "bf16[9,5]"),
                                           CASE("vocab=2", "i32[]<2", "f32[4]"),
                                           CASE("vocab=4", "i32[0]<4", "f32[0,3]"),
                                           CASE("vocab=4 padding=3", "i32[11]<9", "f32[11,3]"),
                                           CASES_END};
static const wefti_op_case cases_find[] = {
    CASE("vocab=7", "i32[2,9]<9"), CASE("vocab=3", "i32[]<3"), CASE("vocab=9000", "i32[300]<9000"),
    CASE("vocab=4", "i32[0]<4"), CASES_END};
/* Positive ids below 2: all places name a few rows. */
static const wefti_op_case cases_sum[] = {
    CASE("vocab=200000 columns=3", "f32[4,3,5]+"),
    CASE("vocab=70000 begin=3 first_column=1 columns=2 parts=3", "f32[7,2,5]+"),
    CASE("vocab=70000 columns=3 parts=2 unit=3", "f32[9,2,5]+"),
    CASE("columns=0", "f32[3,2]"),
    CASE("vocab=9 columns=1", "f32[0,3]"),
    CASES_END};
static const wefti_op_case cases_write[] = {CASE(NULL, "f32[7,5]", "i32[1]<9", "f32[1,5]"),
                                            CASE(NULL, "f32[3,2]", "i32[0]<3", "f32[0,2]"),
                                            CASES_END};

const weft_op_def weft_op_embedding_rows = {
    WEFTI_OP_NAME(embedding_rows), .min_inputs = 2,     .max_inputs = 2,
    .flags = WEFTI_OP_GRADIENT,    .attrs = attrs_rows, .infer = infer_rows,
    .split = split_rows,           .cost = cost_rows,   .reference = reference_rows,
    .cases = cases_rows,
};

const weft_op_def weft_op_rows_find = {
    WEFTI_OP_NAME(rows_find), .min_inputs = 1,     .max_inputs = 1,   .attrs = attrs_find,
    .infer = infer_find,      .split = split_find, .cost = cost_rows, .reference = reference_find,
    .cases = cases_find,
};

const weft_op_def weft_op_rows_sum = {
    WEFTI_OP_NAME(rows_sum), .min_inputs = 1,    .max_inputs = 1,  .attrs = attrs_sum,
    .infer = infer_sum,      .split = split_sum, .cost = cost_sum, .reference = reference_sum,
    .cases = cases_sum,
};

const weft_op_def weft_op_rows_write = {
    WEFTI_OP_NAME(rows_write), .min_inputs = 3,
    .max_inputs = 3,           .flags = WEFTI_OP_IN_PLACE,
    .infer = infer_write,      .split = split_write,
    .cost = cost_write,        .reference = reference_write,
    .cases = cases_write,
};
