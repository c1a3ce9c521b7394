/* Shards of a server, and the ranks that are bound to them: see server/host_parts.h. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "server/host_parts.h"

#ifdef WEFT_HAVE_OPENSSL

/* The value, the optimizer's states, the sum and its terms. */
static double memory_of(const wefti_served *of) {
    double bytes = (double)of->part_bytes[0] * (1 + (double)of->terms);
    for (int k = 0; k <= of->rule.states; k++) bytes += (double)of->part_bytes[k];
    return bytes;
}

static void free_bound(wefti_host_bound *b) {
    wefti_free(b->memory);
    wefti_free(b);
}

void wefti_host_free_shard(wefti_server *s, wefti_host_shard *x) {
    for (wefti_host_bound *b; (b = x->bound); free_bound(b)) x->bound = b->next;
    if (x->state) {
        s->counts.shards--;
        s->counts.bytes -= (int64_t)memory_of(wefti_shard_of(x->state));
    }
    wefti_shard_destroy(x->state);
    wefti_free(x);
}

static bool is_of(const wefti_host_shard *x, const wefti_bind_word *word) {
    const wefti_served *of = wefti_shard_of(x->state), *served = &word->served;
    const size_t sizes = (size_t)served->desc.rank * sizeof served->region.begin[0];
    return x->session == word->session && !strcmp(of->name, served->name) &&
           of->desc.rank == served->desc.rank &&
           !memcmp(of->region.begin, served->region.begin, sizes) &&
           !memcmp(of->region.size, served->region.size, sizes);
}

static weft_status check_room(const wefti_server *s, const wefti_served *served) {
    const double needs = memory_of(served), left = (double)(s->memory_bytes - s->counts.bytes);
    char text[3][32];
    WEFT_REQUIRE(!s->memory_bytes || needs <= left, WEFT_E_NOMEM,
                 "'%.100s' needs %s on server %d (its value, %d states, and gradients of %d "
                 "devices), which has %s left of %s. Use more servers, or more memory",
                 served->name,
                 wefti_bytes_text(needs < 0x1p62 ? (int64_t)needs : INT64_MAX, text[0]), s->number,
                 served->rule.states, served->terms, wefti_bytes_text((int64_t)left, text[1]),
                 wefti_bytes_text(s->memory_bytes, text[2]));
    return WEFT_OK;
}

weft_status wefti_host_find_or_add(wefti_server *s, const wefti_bind_word *word,
                                   wefti_host_shard **out) {
    wefti_host_shard *x = s->shards;
    while (x && !is_of(x, word)) x = x->next;
    *out = x;
    if (x) return wefti_shard_check(x->state, &word->served);
    WEFT_TRY(check_room(s, &word->served));
    WEFT_NEW(x, wefti_host_shard);
    const weft_status status = wefti_shard_create(&word->served, s->threads, &x->state);
    if (status < 0) {
        wefti_free(x);
        return wefti_prefix(status, "'%.100s'", word->served.name);
    }
    x->session = word->session;
    x->id = s->next_id++;
    x->next = s->shards;
    s->shards = x;
    s->counts.shards++;
    s->counts.bytes += (int64_t)memory_of(&word->served);
    *out = x;
    return WEFT_OK;
}

weft_status wefti_host_add_bound(wefti_host_shard *x, wefti_conn_link *link,
                                 const wefti_bind_word *word) {
    const wefti_served *served = &word->served;
    wefti_host_bound *b;
    for (b = x->bound; b; b = b->next) {
        WEFT_REQUIRE(b->link != link, WEFT_E_MISMATCH, "rank %d binds '%.100s' twice", word->rank,
                     served->name);
        WEFT_REQUIRE(served->term < 0 || b->term != served->term, WEFT_E_MISMATCH,
                     "ranks %d and %d push term %d of the gradient of '%.100s'", b->rank,
                     word->rank, served->term, served->name);
    }
    WEFT_NEW(b, wefti_host_bound);
    *b = (wefti_host_bound){.link = link, .rank = word->rank, .term = served->term};
    if (wefti_probe_reads(&word->probe)) b->process = word->probe.process;
    if (served->term >= 0) b->memory = wefti_alloc((size_t)served->part_bytes[0] + 1);
    if (served->term >= 0 && !b->memory) {
        wefti_free(b);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for a gradient of '%.100s'", served->name);
    }
    b->next = x->bound;
    x->bound = b;
    return WEFT_OK;
}

void wefti_host_drop_shard(wefti_server *s, wefti_host_shard *x) {
    wefti_host_shard **at = &s->shards;
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    wefti_host_free_shard(s, x);
}

void wefti_host_unbind(wefti_server *s, wefti_host_shard *x, const wefti_conn_link *link) {
    wefti_host_bound **at = &x->bound, *b;
    while ((b = *at) && b->link != link) at = &b->next;
    if (!b) return;
    wefti_host_drop_answers(s, link, x);
    if (b->term >= 0 && x->lost.status == WEFT_OK) {
        (void)wefti_shard_withdraw(x->state, b->term, b->number);
        x->lost = (wefti_failed_word){.shard = x->id, .status = WEFT_E_PEER, .rank = b->rank};
        (void)snprintf(x->lost.text, sizeof x->lost.text,
                       "rank %d has left the servers, and has not pushed the gradient of '%.100s'",
                       b->rank, wefti_shard_of(x->state)->name);
    }
    *at = b->next;
    free_bound(b);
    if (!x->bound) wefti_host_drop_shard(s, x);
}

#endif
