/* Reading numbers of launchers, and checks that several of them need. */
#include "launch/env/reader.h"

#include <stdlib.h>
#include <string.h>

const char *wefti_reader_get(const wefti_env_reader *r, const char *name) {
    return wefti_variable(r->v, name);
}

weft_status wefti_reader_need(const wefti_env_reader *r, const char *one, const char *other) {
    WEFT_REQUIRE(!wefti_reader_get(r, one) || wefti_reader_get(r, other), WEFT_E_ARG,
                 "%s is set, but %s is not", one, other);
    return WEFT_OK;
}

weft_status wefti_reader_number(const wefti_env_reader *r, const char *name, int min, int max,
                                int *out) {
    return name ? wefti_variable_number(r->v, name, min, max, out) : WEFT_OK;
}

/* Reads the numbers of `n`. A missing number stays -1, a missing size 0. */
weft_status wefti_reader_place(const wefti_env_reader *r, const wefti_claim_names *n,
                               wefti_claim *c) {
    weft_launcher *p = &c->place;
    WEFT_TRY(wefti_reader_number(r, n->size, 1, WEFTI_RANKS_MAX, &p->size));
    WEFT_TRY(wefti_reader_number(r, n->rank, 0, WEFTI_RANKS_MAX - 1, &p->rank));
    WEFT_TRY(wefti_reader_number(r, n->local_rank, 0, WEFTI_RANKS_MAX - 1, &p->local_rank));
    WEFT_TRY(wefti_reader_number(r, n->local_size, 1, WEFTI_RANKS_MAX, &p->local_size));
    WEFT_TRY(wefti_reader_number(r, n->host, 0, WEFTI_RANKS_MAX - 1, &p->host));
    return wefti_reader_number(r, n->hosts, 1, WEFTI_RANKS_MAX, &p->hosts);
}

/* A number that must be below another, where both are known. */
weft_status wefti_reader_below(const char *name, int value, const char *limit_name, int limit) {
    WEFT_REQUIRE(value < 0 || limit <= 0 || value < limit, WEFT_E_ARG,
                 "%s is %d, but %s is %d: it must be from 0 to %d", name, value, limit_name, limit,
                 limit - 1);
    return WEFT_OK;
}

weft_status wefti_read_numbered(wefti_env_reader *r, wefti_start start) {
    const wefti_claim_names *n = &wefti_launchers[start]->names;
    wefti_claim *c = &r->claims[start];
    if (!wefti_reader_get(r, n->rank) && !wefti_reader_get(r, n->size)) return WEFT_OK;
    WEFT_TRY(wefti_reader_need(r, n->rank, n->size));
    if (start != WEFTI_START_WEFT) WEFT_TRY(wefti_reader_need(r, n->size, n->rank));
    c->there = true;
    WEFT_TRY(wefti_reader_place(r, n, c));
    if (c->place.local_size > 0) c->one_host = c->place.local_size == c->place.size;
    return WEFT_OK;
}

/* A text that is a whole number is one; -1 otherwise. */
int wefti_whole_number(const char *text) {
    size_t digits = text ? strspn(text, "0123456789") : 0;
    return digits > 0 && digits < 8 && !text[digits] ? (int)strtol(text, NULL, 10) : -1;
}
