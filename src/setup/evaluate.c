/* The loss of a model on data: see feed.h. */
#include "setup/feed.h"

#include <math.h>

#include "tensor/tensor.h"

/* Rows of a batch that this process counts. Several processes may prepare a row; the lowest of them
 * counts it. */
typedef struct counting {
    bool *counts;       /* [micro] */
    int64_t first, end; /* the rows that count lie in [first, end) */
    int64_t *of_ranks;  /* [TALLIES * devices]: of each rank, while they are added up */
} counting;

/* What a batch adds to the sums over all rows. */
typedef struct tally {
    int64_t targets, right; /* right: rows with the largest logit at their label */
    int64_t bytes;          /* of the targets' texts */
} tally;
enum { TALLIES = sizeof(tally) / sizeof(int64_t) };

static void counting_close(counting *c) {
    wefti_free(c->counts);
    wefti_free(c->of_ranks);
}

/* Of several processes: each knows the rows that all others prepare. */
static weft_status choose_counted(wefti_built *m, const wefti_feed_options *o, counting *c) {
    const int64_t mine[2] = {o->own_begin, o->own_end};
    WEFT_TRY(wefti_agree_records(m->setup->party.agreement, mine, sizeof mine,
                                 c->counts ? c->of_ranks : NULL));
    for (int64_t row = o->own_begin; row < o->own_end; row++) {
        int64_t before = 0;
        for (int r = 0; r < weft_world_rank(m->setup->party.world); r++)
            before += row >= c->of_ranks[2 * r] && row < c->of_ranks[2 * r + 1];
        c->counts[row] = before == 0;
    }
    return WEFT_OK;
}

static weft_status counting_open(wefti_built *m, const wefti_feed_options *o, counting *c) {
    const int64_t micro = m->batch.micro;
    c->counts = wefti_calloc((size_t)micro, sizeof *c->counts);
    c->of_ranks =
        wefti_calloc(TALLIES * (size_t)weft_session_devices(m->session), sizeof *c->of_ranks);
    if (m->setup->party.agreement) WEFT_TRY(choose_counted(m, o, c));
    WEFT_REQUIRE(c->counts && c->of_ranks, WEFT_E_NOMEM, "no memory to count rows");
    if (!m->setup->party.agreement)
        for (int64_t row = 0; row < micro; row++) c->counts[row] = true;
    while (c->first < micro && !c->counts[c->first]) c->first++;
    for (c->end = micro; c->end > c->first && !c->counts[c->end - 1];) c->end--;
    return WEFT_OK;
}

/* Each process reads the logits of the rows that it counts. */
static weft_status count_right(wefti_built *m, const wefti_batch *b, const counting *c,
                               tally *sum) {
    weft_tensor_info info;
    WEFT_TRY(weft_session_find(m->session, m->model.eval_program, "logits", &info));
    int64_t classes = info.desc.shape[info.desc.rank - 1];
    size_t bytes = (size_t)((c->end - c->first) * info.bytes / info.desc.shape[0]);
    void *logits = wefti_alloc(bytes + 1);
    WEFT_REQUIRE(logits, WEFT_E_NOMEM, "no memory for the logits of a validation batch");
    weft_status status = weft_session_read_rows(m->session, m->model.eval_program, "logits",
                                                c->first, logits, bytes);
    for (int64_t r = c->first; r < c->end && r < b->valid && status == WEFT_OK; r++) {
        const int64_t row = (r - c->first) * classes;
        int64_t best = 0;
        for (int64_t k = 1; k < classes; k++)
            if (wefti_load(info.desc.dtype, logits, row + k) >
                wefti_load(info.desc.dtype, logits, row + best))
                best = k;
        sum->right += c->counts[r] && best == b->target[r];
    }
    wefti_free(logits);
    return status;
}

/* Adds up what all processes have counted. */
static weft_status add_up(const wefti_built *m, const counting *c, tally *sum) {
    const int64_t mine[TALLIES] = {sum->targets, sum->right, sum->bytes};
    if (!m->setup->party.agreement) return WEFT_OK;
    WEFT_TRY(wefti_agree_records(m->setup->party.agreement, mine, sizeof mine, c->of_ranks));
    *sum = (tally){0, 0, 0};
    for (int r = 0; r < weft_session_devices(m->session); r++) {
        sum->targets += c->of_ranks[TALLIES * r];
        sum->right += c->of_ranks[TALLIES * r + 1];
        sum->bytes += c->of_ranks[TALLIES * r + 2];
    }
    return WEFT_OK;
}

/* Bytes of the texts of a row's targets. Tokens that end a text are no part of it. */
static int64_t bytes_of_targets(const wefti_built *m, const wefti_batch *b, int64_t row) {
    const weft_tokenizer *tokenizer = weft_data_tokenizer(m->data);
    const weft_model_config *config = &m->model.config;
    const weft_desc target = weft_data_target(m->data);
    const int64_t count = weft_desc_elems(&target);
    int64_t all = 0;
    if (!tokenizer || !m->model.objective->generates) return 0;
    for (const int32_t *at = b->target + row * count, *end = at + count; at < end; at++) {
        int64_t bytes = 0;
        bool ends = *at < 0;
        for (int64_t i = 0; i < config->end_count; i++) ends |= config->ends[i] == *at;
        if (!ends && weft_tokenizer_token(tokenizer, *at, &bytes)) all += bytes;
    }
    return all;
}

static weft_status count(wefti_built *m, const wefti_batch *b, const counting *c, tally *out) {
    *out = (tally){0, 0, 0};
    for (int64_t r = c->first; r < c->end && r < b->valid; r++) {
        if (!c->counts[r]) continue;
        out->targets += wefti_batch_targets(m, b, r, 1);
        out->bytes += bytes_of_targets(m, b, r);
    }
    if (m->model.objective->has_accuracy) WEFT_TRY(count_right(m, b, c, out));
    return add_up(m, c, out);
}

static weft_status evaluate_with(wefti_built *m, wefti_feed *feed, int64_t batches,
                                 const counting *c, wefti_evaluation_stops *stops, void *context,
                                 wefti_evaluation *out) {
    double sum = 0;
    int64_t right = 0;
    for (int64_t i = 0; i < batches; i++) {
        wefti_batch b;
        double loss;
        tally counted;
        WEFT_TRY(stops(context, &out->stopped));
        if (out->stopped) break;
        WEFT_TRY(wefti_feed_next(feed, &b));
        out->prepared += b.prepared;
        if (m->model.objective->prepare) m->model.objective->prepare(m, &b, m->batch.micro);
        WEFT_TRY(wefti_built_feed_rows(m, m->model.eval_program, &b, 0));
        WEFT_TRY(weft_session_forward(m->session, m->model.eval_program, &loss));
        WEFT_TRY(count(m, &b, c, &counted));
        sum += loss * (double)counted.targets;
        out->targets += counted.targets;
        out->bytes += counted.bytes;
        right += counted.right;
        out->samples += b.valid;
        wefti_feed_release(feed);
    }
    if (out->targets) out->loss = sum / (double)out->targets;
    if (m->model.objective->has_accuracy && out->samples)
        out->accuracy = (double)right / (double)out->samples;
    return WEFT_OK;
}

weft_status wefti_built_evaluate(wefti_built *m, weft_data_part part, int64_t batches,
                                 wefti_evaluation_stops *stops, void *context,
                                 wefti_evaluation *out) {
    wefti_feed_options o = {.data = m->data,
                            .part = part,
                            .sequential = true,
                            .batch = m->batch.micro,
                            .row_end = m->batch.micro,
                            .ring = WEFTI_RING_PASSES,
                            .padding_target = -1};
    counting c = {.counts = NULL};
    wefti_feed *feed = NULL;
    void *block = NULL;
    *out = (wefti_evaluation){.loss = NAN, .accuracy = NAN};
    weft_status status = wefti_built_choose_rows(m, m->model.eval_program, &o);
    if (status >= 0) status = counting_open(m, &o, &c);
    if (status >= 0) status = wefti_open_feed(&o, &block, &feed);
    if (status >= 0) status = evaluate_with(m, feed, batches, &c, stops, context, out);
    wefti_feed_destroy(feed);
    wefti_free(block);
    counting_close(&c);
    return status;
}
