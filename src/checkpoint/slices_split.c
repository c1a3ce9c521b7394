/* Splits whole tensors into slices for ranks. See weft/checkpoint.h. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json/json.h"
#include "base/memory.h"
#include "checkpoint/slices.h"
#include "layout/layout.h"

enum { RANKS_MAX = 100000 }; /* file names have five digits for the rank */

/* One rank's part of a tensor. */
typedef struct slices_split_piece {
    const wefti_safetensors_entry *entry;
    int dimension;
    int64_t begin;
} slices_split_piece;

typedef struct split {
    wefti_source *source;
    int ranks;
    int64_t count; /* of tensors */
    int *dimensions;
    slices_split_piece *pieces; /* of one rank at a time */
    wefti_safetensors_item *items;
    char **paths; /* of all ranks */
} split;

static void split_free(split *s) {
    for (int r = 0; s->paths && r < s->ranks; r++) wefti_free(s->paths[r]);
    wefti_free(s->paths);
    wefti_free(s->items);
    wefti_free(s->pieces);
    wefti_free(s->dimensions);
    wefti_source_close(s->source);
}

/* Without this prefix file names would begin with "-", as options do. */
static weft_status check_prefix(const char *prefix) {
    size_t length = strlen(prefix);
    WEFT_REQUIRE(
        length && prefix[length - 1] != '/', WEFT_E_ARG,
        "'%s' cannot be the prefix of file names: give one that is not empty and does not end with "
        "'/', for example '%sslice'",
        prefix, prefix);
    return WEFT_OK;
}

static weft_status name_files(split *s, const char *prefix) {
    WEFT_TRY(check_prefix(prefix));
    WEFT_NEW_ARRAY(s->paths, char *, s->ranks);
    for (int r = 0; r < s->ranks; r++) {
        s->paths[r] = wefti_format("%s-rank-%05d-of-%05d.safetensors", prefix, r, s->ranks);
        WEFT_REQUIRE(s->paths[r], WEFT_E_NOMEM, "no memory for the names of %d files", s->ranks);
        WEFT_TRY(wefti_slices_check_new(s->paths[r]));
    }
    return WEFT_OK;
}

static weft_status prepare(split *s, const char *path, const weft_checkpoint_slice_rule *rules,
                           int rule_count, const char *prefix) {
    WEFT_TRY(name_files(s, prefix));
    WEFT_TRY(wefti_source_open(path, &s->source));
    s->count = wefti_source_count(s->source);
    WEFT_NEW_ARRAY(s->dimensions, int, s->count + 1);
    WEFT_NEW_ARRAY(s->pieces, slices_split_piece, s->count + 1);
    WEFT_NEW_ARRAY(s->items, wefti_safetensors_item, s->count + 1);
    return wefti_slices_dimensions(s->source, rules, rule_count, s->dimensions);
}

/* Uneven sizes as everywhere: part i of n elements ends where part i + 1 begins. */
static void slice_for(split *s, int rank) {
    for (int64_t k = 0; k < s->count; k++) {
        const wefti_safetensors_entry *entry = wefti_source_at(s->source, k);
        slices_split_piece *p = &s->pieces[k];
        *p = (slices_split_piece){entry, s->dimensions[k], 0};
        s->items[k] = (wefti_safetensors_item){entry->name, entry->desc, p};
        if (p->dimension < 0) continue;
        int64_t *size = &s->items[k].desc.shape[p->dimension];
        wefti_part(*size, 1, s->ranks, rank, &p->begin, size);
    }
}

static weft_status slice_bytes(const wefti_safetensors_item *item, void *room) {
    const slices_split_piece *p = item->data;
    const wefti_safetensors_entry *e = p->entry;
    if (p->dimension < 0) return wefti_reader_at(e->reader, e->at, e->bytes, room);
    wefti_runs whole = wefti_runs_of(&e->desc, p->dimension);
    wefti_runs runs = wefti_runs_of(&item->desc, p->dimension);
    int64_t from = e->at + p->begin * runs.inner, bytes = runs.size * runs.inner;
    weft_status status = WEFT_OK;
    wefti_reader_window *window;
    WEFT_NEW(window, wefti_reader_window);
    window->reader = e->reader;
    for (int64_t i = 0; i < runs.outer && bytes && status >= 0; i++)
        status = wefti_reader_near(window, from + i * whole.size * whole.inner, bytes,
                                   (char *)room + i * bytes);
    wefti_free(window);
    return status;
}

static weft_status write_slice(split *s, int rank, wefti_safetensors_pair *metadata,
                               int64_t pairs) {
    char number[16], ranks[16];
    (void)snprintf(number, sizeof number, "%d", rank);
    (void)snprintf(ranks, sizeof ranks, "%d", s->ranks);
    metadata[pairs++] = (wefti_safetensors_pair){WEFTI_SLICE_RANK, number};
    metadata[pairs++] = (wefti_safetensors_pair){WEFTI_SLICE_RANKS, ranks};
    slice_for(s, rank);
    return wefti_safetensors_write_made(s->paths[rank], s->items, s->count, metadata, pairs,
                                        slice_bytes);
}

static weft_status write_slices(split *s) {
    int64_t count = 0, pairs = 0;
    const wefti_safetensors_pair *own = wefti_source_metadata(s->source, &count);
    wefti_safetensors_pair *metadata; /* the whole's metadata and the slice's own */
    WEFT_NEW_ARRAY(metadata, wefti_safetensors_pair, count + 2);
    for (int64_t i = 0; i < count; i++)
        if (!wefti_slices_own(own[i].key)) metadata[pairs++] = own[i];
    weft_status status = WEFT_OK;
    int written = 0;
    for (; written < s->ranks && status >= 0; written++)
        status = write_slice(s, written, metadata, pairs);
    wefti_free(metadata);
    for (int r = 0; r < written && status < 0; r++) (void)unlink(s->paths[r]); /* all or none */
    return status;
}

static void tell(const split *s, bool json, wefti_text *text) {
    if (json) {
        wefti_text_add(text, "{\"files\": [");
        for (int r = 0; r < s->ranks; r++) {
            wefti_text_add(text, "%s", r ? ", " : "");
            wefti_json_quote(text, s->paths[r]);
        }
        wefti_text_add(text, "], \"tensors\": [");
    } else {
        wefti_text_add(text, "files        %s", s->paths[0]);
        if (s->ranks > 1) wefti_text_add(text, " to %s", s->paths[s->ranks - 1]);
        wefti_text_add(text, "\ntensors      %lld\n", (long long)s->count);
    }
    for (int64_t k = 0; k < s->count; k++) {
        const wefti_safetensors_entry *entry = wefti_source_at(s->source, k);
        wefti_safetensors_item whole = {entry->name, entry->desc, NULL};
        wefti_slices_tell(text, json, k == 0, &whole, "split", s->dimensions[k]);
    }
    if (json) wefti_text_add(text, "]}\n");
}

weft_status weft_checkpoint_split(const char *path, int ranks,
                                  const weft_checkpoint_slice_rule *rules, int rule_count,
                                  const char *prefix, int json, char **out_text) {
    WEFT_REQUIRE(ranks >= 1 && ranks <= RANKS_MAX, WEFT_E_ARG,
                 "a checkpoint is split for 1 to %d ranks, not %d", RANKS_MAX, ranks);
    split s = {.ranks = ranks};
    char *text = NULL;
    weft_status status = prepare(&s, path, rules, rule_count, prefix);
    if (status >= 0 && out_text) {
        wefti_text told = {0};
        tell(&s, json != 0, &told);
        status = wefti_slices_take(&told, &text);
    }
    if (status >= 0) status = write_slices(&s);
    split_free(&s);
    return wefti_slices_give(status, text, out_text);
}
