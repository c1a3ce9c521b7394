/* What a server says to ranks, once it can: see server/host_parts.h. */
#include <stdio.h>

#include "base/io.h"
#include "server/host_parts.h"

#ifdef WEFT_HAVE_OPENSSL

weft_status wefti_host_answer_later(wefti_server *s, wefti_host_answer answer) {
    wefti_host_answer *a;
    WEFT_NEW(a, wefti_host_answer);
    *a = answer;
    a->next = NULL;
    *s->last = a;
    s->last = &a->next;
    return WEFT_OK;
}

weft_status wefti_host_refuse(wefti_server *s, wefti_conn_link *link, uint64_t tag, uint32_t shard,
                              weft_status status, int rank) {
    wefti_failed_word *failed;
    WEFT_NEW(failed, wefti_failed_word);
    *failed = (wefti_failed_word){.shard = shard, .status = status, .rank = rank};
    (void)snprintf(failed->text, sizeof failed->text, "%s", weft_error_message());
    const weft_status added = wefti_host_answer_later(
        s,
        (wefti_host_answer){.link = link, .word = WEFTI_WORD_FAILED, .tag = tag, .failed = failed});
    if (added < 0) wefti_free(failed);
    return added;
}

/* Which phase of the shard's round an answer needs; whether it is there. */
static bool is_ready(const wefti_host_answer *a) {
    const bool value = a->word == WEFTI_WORD_VALUE || a->word == WEFTI_WORD_VALUE_AT;
    const wefti_shard_phase needed = value                          ? WEFTI_SHARD_VALUE
                                     : a->word == WEFTI_WORD_SQUARE ? WEFTI_SHARD_SUM
                                                                    : WEFTI_SHARD_TERMS;
    if (needed == WEFTI_SHARD_TERMS) return true;
    /* Terms of the next step may have come; the value stays until all ranks have it. */
    if (value && (int64_t)a->tag == a->shard->applied) return true;
    const wefti_shard_phase now = wefti_shard_phase_of(a->shard->state, (int64_t)a->tag);
    return now >= needed && now != WEFTI_SHARD_FAILED;
}

/* Whether what an answer needs never comes. */
static bool is_vain(const wefti_host_answer *a) {
    if (a->word != WEFTI_WORD_VALUE && a->word != WEFTI_WORD_VALUE_AT &&
        a->word != WEFTI_WORD_SQUARE)
        return false;
    const wefti_shard_phase now = wefti_shard_phase_of(a->shard->state, (int64_t)a->tag);
    return a->shard->lost.status < 0 && (now == WEFTI_SHARD_TERMS || now == WEFTI_SHARD_FAILED);
}

/* WEFT_PENDING: there is more to say. */
static weft_status say_bytes(wefti_host_answer *a) {
    unsigned char head[WEFTI_WORD_HEAD] = {0}, *from;
    wefti_put_number(head, a->shard->id, 4);
    wefti_put_number(head + 4, (uint64_t)a->part, 4);
    do {
        const int64_t left = a->end - a->at;
        const int64_t bytes = left < WEFTI_WORD_CHUNK ? left : WEFTI_WORD_CHUNK;
        WEFT_TRY(wefti_shard_bytes(a->shard->state, a->part, a->at, bytes, &from));
        const struct iovec part[] = {{head, sizeof head}, {from, (size_t)bytes}};
        const weft_status status =
            wefti_conn_link_send(a->link, (uint32_t)a->word, a->tag, (uint64_t)a->at, part, 2);
        if (status != WEFT_OK) return status;
        a->at += bytes;
    } while (a->at < a->end);
    if (a->word == WEFTI_WORD_VALUE) a->shard->taken++;
    return WEFT_OK;
}

/* What BOUND and VALUE_AT say behind the head. */
static weft_status add_place(const wefti_server *s, const wefti_host_answer *a, unsigned char *body,
                             size_t *bytes) {
    unsigned char *value;
    if (a->word == WEFTI_WORD_BOUND) {
        wefti_probe_encode(&s->probe, body + *bytes);
        *bytes += WEFTI_PROBE_BYTES;
    }
    if (a->word != WEFTI_WORD_VALUE_AT) return WEFT_OK;
    WEFT_TRY(wefti_shard_bytes(a->shard->state, 0, 0, a->end, &value));
    wefti_put_number(body + *bytes, (uint64_t)(uintptr_t)value, 8);
    *bytes += 8;
    return WEFT_OK;
}

static weft_status say(const wefti_server *s, wefti_host_answer *a) {
    unsigned char body[WEFTI_FAILED_HEAD + WEFTI_WORD_TEXT] = {0};
    size_t bytes = WEFTI_WORD_HEAD;
    if (a->word == WEFTI_WORD_VALUE || a->word == WEFTI_WORD_BYTES) return say_bytes(a);
    if (a->failed) bytes = wefti_failed_encode(a->failed, body);
    if (a->shard) wefti_put_number(body, a->shard->id, 4);
    if (!a->failed) wefti_put_number(body + 4, (uint64_t)a->part, 4);
    WEFT_TRY(add_place(s, a, body, &bytes));
    if (a->word == WEFTI_WORD_SQUARE) {
        wefti_shard_square(a->shard->state, body + bytes);
        bytes += sizeof(double);
    }
    const struct iovec part = {body, bytes};
    return wefti_conn_link_send(a->link, (uint32_t)a->word, a->tag, 0, &part, 1);
}

void wefti_host_free_answer(wefti_host_answer *a) {
    wefti_free(a->failed);
    wefti_free(a);
}

void wefti_host_say(wefti_server *s) {
    for (wefti_host_answer **at = &s->answers, *a; (a = *at);) {
        if (!is_ready(a) && is_vain(a)) {
            a->failed = wefti_calloc(1, sizeof *a->failed);
            if (a->failed) *a->failed = a->shard->lost;
            if (a->failed) a->word = WEFTI_WORD_FAILED;
        }
        if (!is_ready(a) || say(s, a) != WEFT_OK) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        if (!a->next) s->last = at;
        wefti_host_free_answer(a);
    }
}

void wefti_host_drop_answers(wefti_server *s, const wefti_conn_link *link,
                             const wefti_host_shard *shard) {
    for (wefti_host_answer **at = &s->answers, *a; (a = *at);) {
        if (a->link != link || (shard && a->shard != shard)) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        wefti_host_free_answer(a);
    }
    s->last = &s->answers;
    while (*s->last) s->last = &(*s->last)->next;
}

#endif
