/* Chooses the files to read. See copy.h. */
#include "base/text.h"
#include "reshard/copy.h"

static bool is_candidate(const wefti_reads *r, const wefti_source_piece *p) {
    return !r->replicas || p->reader;
}

static bool is_needed(const wefti_reads *r, int64_t tensor, const wefti_source_piece *p) {
    const wefti_target *t = r->target;
    wefti_region both;
    if (!t) return true;
    for (int32_t i = t->first_item[tensor]; i >= 0; i = t->items[i].next)
        if (wefti_region_intersect(&p->region, &t->items[i].region,
                                   r->source->tensors[tensor].desc.rank, &both))
            return true;
    return false;
}

/* ---- coverage ---- */

static weft_status fail_coverage(const wefti_shards *s, const wefti_source_tensor *t, int64_t found,
                                 int64_t all) {
    wefti_text missing = {0};
    wefti_shards_missing(s, &missing);
    char *names = wefti_text_take(&missing);
    weft_status status =
        names && *names
            ? WEFT_RAISE(WEFT_E_NOT_FOUND,
                         "%s: the files have %lld of %lld elements of tensor %.200s; missing: %s",
                         s->path, (long long)found, (long long)all, t->name, names)
            : WEFT_RAISE(WEFT_E_CORRUPT,
                         "%s: the files have %lld of %lld elements of tensor %.200s", s->path,
                         (long long)found, (long long)all, t->name);
    wefti_free(names);
    return status;
}

/* Regions do not overlap, so that their elements add up. */
static weft_status check_region(const wefti_shards *s, const wefti_source_tensor *t,
                                const wefti_region *region) {
    const int64_t all = wefti_region_elems(region, t->desc.rank);
    int64_t found = 0;
    wefti_region both;
    for (int64_t k = 0; k < t->count; k++)
        if (t->pieces[k].first &&
            wefti_region_intersect(&t->pieces[k].region, region, t->desc.rank, &both))
            found += wefti_region_elems(&both, t->desc.rank);
    return found == all ? WEFT_OK : fail_coverage(s, t, found, all);
}

/* Whoever reads a whole checkpoint must not mistake the rest of one for it. */
static weft_status check_lost(const wefti_reads *r) {
    const wefti_shards *s = r->source;
    if (r->target && !r->all) return WEFT_OK;
    if (s->absent_count) return wefti_shards_fail_absent(s, s->absent[0]);
    if (!s->unknown || (r->target && r->replicas && s->maybe_replicas)) return WEFT_OK;
    wefti_text missing = {0};
    wefti_shards_missing(s, &missing);
    char *names = wefti_text_take(&missing);
    weft_status status = WEFT_RAISE(WEFT_E_NOT_FOUND, "%s: missing: %s; %s", s->path,
                                    names ? names : "some files", s->unknown);
    wefti_free(names);
    return status;
}

static weft_status check_coverage(const wefti_reads *r) {
    const wefti_shards *s = r->source;
    WEFT_TRY(check_lost(r));
    for (int64_t i = 0; i < s->count; i++) {
        const wefti_source_tensor *t = &s->tensors[i];
        if (!r->target) {
            const wefti_region whole = wefti_region_whole(&t->desc);
            WEFT_TRY(check_region(s, t, &whole));
            continue;
        }
        for (int32_t k = r->target->first_item[i]; k >= 0; k = r->target->items[k].next)
            WEFT_TRY(check_region(s, t, &r->target->items[k].region));
    }
    return WEFT_OK;
}

/* ---- choice ---- */

/* Visits the needed regions of tensors that are, or are not, `unplaced`. */
typedef void region_visit(const wefti_reads *r, wefti_source_tensor *t, wefti_source_piece *p,
                          int64_t *users);

static void each_region(const wefti_reads *r, bool unplaced, region_visit *visit, int64_t *users) {
    for (int64_t i = 0; i < r->source->count; i++) {
        wefti_source_tensor *t = &r->source->tensors[i];
        if (t->unplaced != unplaced) continue;
        for (int64_t k = 0; k < t->count; k++)
            if (t->pieces[k].first && t->pieces[k].chosen != -2) visit(r, t, &t->pieces[k], users);
    }
}

static void choose(wefti_source_tensor *t, wefti_source_piece *p, int32_t k, int64_t *users) {
    if (p->chosen >= 0) users[t->pieces[p->chosen].file]--;
    p->chosen = k;
    users[t->pieces[k].file]++;
}

/* Regions of which there is one candidate. */
static void choose_only(const wefti_reads *r, wefti_source_tensor *t, wefti_source_piece *p,
                        int64_t *users) {
    int32_t only = -1, count = 0;
    for (int32_t k = (int32_t)(p - t->pieces); k >= 0; k = t->pieces[k].same)
        if (is_candidate(r, &t->pieces[k]) && count++ == 0) only = k;
    if (count == 1) choose(t, p, only, users);
}

/* Other regions: a file that is read already, or that of the preferred rank, or the first. */
static void choose_some(const wefti_reads *r, wefti_source_tensor *t, wefti_source_piece *p,
                        int64_t *users) {
    int32_t best = -1, rank = 0;
    if (p->chosen >= 0) return;
    for (int32_t k = (int32_t)(p - t->pieces); k >= 0; k = t->pieces[k].same) {
        const wefti_source_piece *q = &t->pieces[k];
        if (!is_candidate(r, q)) continue;
        const bool prefer = r->prefer >= 0 && r->source->files[q->file].rank == r->prefer;
        const int32_t value = users[q->file] ? 3 : prefer ? 2 : 1;
        if (value <= rank) continue;
        best = k;
        rank = value;
    }
    if (best >= 0) choose(t, p, best, users);
}

/* Moves a region to another file that is read, if its file has few users: several passes leave
 * files without users. */
static void choose_again(const wefti_reads *r, wefti_source_tensor *t, wefti_source_piece *p,
                         int64_t *users) {
    if (p->chosen < 0) return;
    const int64_t now = users[t->pieces[p->chosen].file];
    for (int32_t k = (int32_t)(p - t->pieces); k >= 0; k = t->pieces[k].same) {
        const wefti_source_piece *q = &t->pieces[k];
        if (!is_candidate(r, q) || q->file == t->pieces[p->chosen].file) continue;
        if (users[q->file] <= now) continue;
        choose(t, p, k, users);
        return;
    }
}

static weft_status fail_region(const wefti_reads *r, const wefti_source_tensor *t,
                               const wefti_source_piece *p) {
    wefti_text text = {0};
    wefti_shards_holders(r->source, t, p, &text);
    char *holders = wefti_text_take(&text);
    WEFT_REQUIRE(holders, WEFT_E_NOMEM, "no memory for a message");
    bool left = false;
    for (int64_t k = p - t->pieces; k >= 0; k = t->pieces[k].same)
        left = left || t->pieces[k].reader;
    const char *file = p->chosen < 0 ? "" : r->source->files[t->pieces[p->chosen].file].path;
    weft_status status;
    if (p->chosen < 0)
        status = WEFT_RAISE(WEFT_E_NOT_FOUND,
                            "%s: no file is left that has a certain part of tensor %.200s; it was "
                            "in the files of %s",
                            r->source->path, t->name, holders);
    else if (left)
        status = WEFT_RAISE(WEFT_E_NOT_FOUND,
                            "%s is missing: it has a part of tensor %.200s, which the files of %s "
                            "have; --replicas reads the others",
                            file, t->name, holders);
    else
        status = WEFT_RAISE(WEFT_E_NOT_FOUND,
                            "%s is missing: it has a part of tensor %.200s, which no other file "
                            "has that is there; it was in the files of %s",
                            file, t->name, holders);
    wefti_free(holders);
    return status;
}

static weft_status check_chosen(const wefti_reads *r) {
    for (int64_t i = 0; i < r->source->count; i++) {
        const wefti_source_tensor *t = &r->source->tensors[i];
        for (int64_t k = 0; k < t->count; k++) {
            const wefti_source_piece *p = &t->pieces[k];
            if (!p->first || p->chosen == -2) continue;
            if (p->chosen < 0 || !t->pieces[p->chosen].reader) return fail_region(r, t, p);
        }
    }
    return WEFT_OK;
}

weft_status wefti_reads_choose(const wefti_reads *r, bool *out_used) {
    int64_t *users;
    weft_status status = check_coverage(r);
    if (status < 0) return status;
    WEFT_NEW_ARRAY(users, int64_t, r->source->file_count + 1);
    for (int64_t i = 0; i < r->source->count; i++) {
        wefti_source_tensor *t = &r->source->tensors[i];
        for (int64_t k = 0; k < t->count; k++)
            t->pieces[k].chosen = t->pieces[k].first && is_needed(r, i, &t->pieces[k]) ? -1 : -2;
    }
    /* What is known of missing files must not change the choice: tensors of which it is not known
     * whether missing files have them come last. */
    for (int unplaced = 0; unplaced < 2; unplaced++) {
        each_region(r, unplaced, choose_only, users);
        each_region(r, unplaced, choose_some, users);
        for (int pass = 0; pass < 2; pass++) each_region(r, unplaced, choose_again, users);
    }
    for (int64_t i = 0; i < r->source->file_count && out_used; i++) out_used[i] = users[i] > 0;
    wefti_free(users);
    return out_used ? WEFT_OK : check_chosen(r);
}
