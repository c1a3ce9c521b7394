/* Checks that the programs of several processes communicate alike, without building all of them in
 * one process.
 *
 * program/match.h plays the programs of all ranks, which needs them in one process. Here each
 * process has one program. A group of ranks and a tag form a channel, in which transfers meet in
 * order. So the members of a channel need the same transfers of the same values in the same calls,
 * in one order. Each rank describes its channels by digests, and a channel is refused if its
 * members differ. Then all transfers meet. Ranks cannot wait in a circle, because all programs come
 * from one deterministic walk over equal plans, and plans are compared before. */
#include <stdlib.h>
#include <string.h>

#include "base/digest/digest.h"
#include "session/parts.h"

/* A program's channels while they are collected. */
typedef struct description {
    const wefti_program *program;
    uint64_t *transfer; /* digest of each */
    int64_t *record;    /* index of its channel's record */
    wefti_channel_record *records;
    int64_t count, cap;
} description;

static void describe(description *d, const wefti_step *step, int32_t micro,
                     const wefti_instruction *code, int64_t index, wefti_section section) {
    wefti_channel_record *record = &d->records[d->record[index]];
    uint64_t digest = wefti_digest_number(record->digest, d->transfer[index]);
    digest = wefti_digest_number(digest, (uint64_t)section << 8 | (uint64_t)step->phase);
    digest = wefti_digest_number(digest, (uint64_t)micro);
    digest = wefti_digest_text(digest, step->name);
    record->digest = wefti_digest_text(digest, code ? code->node->scope : "");
    record->count++;
}

static void describe_step(description *d, const wefti_step *step, int32_t micro,
                          wefti_section section) {
    if (step->kind == WEFTI_STEP_POST && !wefti_step_copy(d->program, step))
        describe(d, step, micro, NULL, wefti_step_transfer_of(d->program, step), section);
    if (step->kind != WEFTI_STEP_CALL) return;
    for (int32_t k = step->from; k < step->to; k++)
        if (step->routine->code[k].transfer >= 0)
            describe(d, step, micro, &step->routine->code[k], step->routine->code[k].transfer,
                     section);
}

static weft_status find_record(description *d, uint64_t channel, int64_t *out) {
    for (*out = 0; *out < d->count; ++*out)
        if (d->records[*out].channel == channel) return WEFT_OK;
    WEFT_TRY(WEFT_GROW(d->records, d->count, d->cap));
    d->records[d->count++] = (wefti_channel_record){.channel = channel};
    return WEFT_OK;
}

static int by_channel(const void *a, const void *b) {
    const wefti_channel_record *x = a, *y = b;
    return (x->channel > y->channel) - (x->channel < y->channel);
}

static weft_status describe_all(description *d) {
    const wefti_program *p = d->program;
    int32_t transfers = p->partition ? wefti_partition_transfers(p->partition) : 0;
    WEFT_NEW_ARRAY(d->transfer, uint64_t, transfers + 1);
    WEFT_NEW_ARRAY(d->record, int64_t, transfers + 1);
    for (int32_t i = 0; i < transfers; i++) {
        const wefti_transfer *t = wefti_partition_transfer(p->partition, i);
        d->transfer[i] = wefti_transfer_digest(t);
        WEFT_TRY(find_record(d, wefti_transfer_channel(t), &d->record[i]));
    }
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        wefti_cursor at = {0};
        const wefti_step *step;
        for (; (step = wefti_cursor_step(p, (wefti_section)s, &at));
             wefti_cursor_next(p, (wefti_section)s, &at))
            describe_step(d, step, wefti_cursor_micro(p, (wefti_section)s, &at), (wefti_section)s);
    }
    if (d->count) qsort(d->records, (size_t)d->count, sizeof *d->records, by_channel);
    return WEFT_OK;
}

weft_status wefti_channels_of(const wefti_program *program, wefti_channel_record **out,
                              int64_t *out_count) {
    description d = {.program = program};
    weft_status status = describe_all(&d);
    wefti_free(d.transfer);
    wefti_free(d.record);
    if (status < 0) {
        wefti_free(d.records);
        return status;
    }
    *out = d.records;
    *out_count = d.count;
    return WEFT_OK;
}

static const wefti_channel_record *look_up(const wefti_channel_record *records, int64_t count,
                                           uint64_t channel) {
    const wefti_channel_record key = {.channel = channel};
    return count ? bsearch(&key, records, (size_t)count, sizeof key, by_channel) : NULL;
}

weft_status wefti_channels_match(const wefti_program *p, const wefti_channel_record *const *records,
                                 const int64_t *counts) {
    int32_t me = p->rank, transfers = p->partition ? wefti_partition_transfers(p->partition) : 0;
    for (int32_t i = 0; i < transfers; i++) {
        const wefti_transfer *t = wefti_partition_transfer(p->partition, i);
        uint64_t channel = wefti_transfer_channel(t);
        const wefti_channel_record *mine = look_up(records[me], counts[me], channel);
        for (int32_t m = 0; m < t->members && mine; m++) {
            int32_t r = t->ranks[m];
            const wefti_channel_record *theirs = look_up(records[r], counts[r], channel);
            if (theirs && theirs->count == mine->count && theirs->digest == mine->digest) continue;
            WEFT_FAIL(WEFT_E_MISMATCH,
                      "the programs of ranks %d and %d do not communicate alike: %s of '%s' is one "
                      "of %lld transfers in its group here, rank %d has %s%lld there",
                      me, r, wefti_transfer_kind_text(t->kind), t->name ? t->name : "",
                      (long long)mine->count, r,
                      theirs && theirs->count == mine->count ? "others, also " : "",
                      theirs ? (long long)theirs->count : 0LL);
        }
    }
    return WEFT_OK;
}
