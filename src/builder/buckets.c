/* Decides which gradients are reduced together: the buckets of parameters. See builder/fusion.h. */
#include "base/digest/digest.h"
#include "builder/decide.h"
#include "builder/fusion.h"

/* ---- buckets of collectives ---- */

/* A bucket. */
typedef struct fused {
    int64_t bytes, last; /* last: its last item */
    int32_t section;     /* of fusion->index */
    int32_t number;      /* in the order of last items */
} fused;

/* The open bucket of one key. */
typedef struct open_bucket {
    uint64_t key;
    int32_t bucket;
} open_bucket;

typedef struct fuser {
    const wefti_fusion *fusion;
    fused *buckets;
    open_bucket *open;
    int32_t bucket_count, open_count;
} fuser;

static open_bucket *open_of(fuser *f, uint64_t key) {
    for (int32_t i = 0; i < f->open_count; i++)
        if (f->open[i].key == key) return &f->open[i];
    f->open[f->open_count] = (open_bucket){.key = key, .bucket = -1};
    return &f->open[f->open_count++];
}

static bool fits(const fuser *f, const fused *bucket, int64_t bytes, int32_t section) {
    switch (f->fusion->mode) {
    case WEFT_FUSION_AUTO:
        return bytes <= WEFTI_FUSION_AUTO - bucket->bytes;
    case WEFT_FUSION_SIZE:
        return bytes <= f->fusion->bytes - bucket->bytes;
    case WEFT_FUSION_INDEX:
        return section == bucket->section;
    case WEFT_FUSION_NONE:
    case WEFT_FUSIONS:
        break;
    }
    return false;
}

static void fuse(fuser *f, int64_t count, const wefti_fusion_item *items, int32_t *bucket) {
    int32_t section = 0;
    for (int64_t i = 0; i < count; i++) {
        while (section < f->fusion->index_count && f->fusion->index[section] <= i) section++;
        open_bucket *open = open_of(f, items[i].key);
        if (open->bucket < 0 || !fits(f, &f->buckets[open->bucket], items[i].bytes, section)) {
            open->bucket = f->bucket_count++;
            f->buckets[open->bucket] = (fused){.section = section};
        }
        fused *b = &f->buckets[open->bucket];
        b->bytes += items[i].bytes;
        b->last = i;
        bucket[i] = open->bucket;
    }
    int32_t number = 0;
    for (int64_t i = 0; i < count; i++)
        if (f->buckets[bucket[i]].last == i) f->buckets[bucket[i]].number = number++;
    for (int64_t i = 0; i < count; i++) bucket[i] = f->buckets[bucket[i]].number;
}

weft_status wefti_fusion_buckets(const wefti_fusion *fusion, int64_t count,
                                 const wefti_fusion_item *items, int32_t *bucket,
                                 int32_t *out_buckets) {
    WEFT_REQUIRE(count >= 0 && count <= INT32_MAX, WEFT_E_ARG, "%lld collectives to fuse",
                 (long long)count);
    for (int64_t i = 0; i < count; i++)
        WEFT_REQUIRE(items[i].bytes >= 0 && items[i].bytes <= INT64_MAX / (count + 1), WEFT_E_ARG,
                     "collective %lld to fuse has %lld bytes", (long long)i,
                     (long long)items[i].bytes);
    fuser f = {.fusion = fusion};
    f.buckets = wefti_calloc((size_t)count + 1, sizeof *f.buckets + sizeof *f.open);
    WEFT_REQUIRE(f.buckets, WEFT_E_NOMEM, "no memory to fuse %lld collectives", (long long)count);
    f.open = (open_bucket *)(void *)(f.buckets + count + 1);
    fuse(&f, count, items, bucket);
    wefti_free(f.buckets);
    *out_buckets = f.bucket_count;
    return WEFT_OK;
}

/* ---- buckets of gradients ---- */

/* Level 2 of several microbatches reduces a gradient behind the last call of a task that adds to
 * it. If several tasks of a stage add to it, it is not whole between them, so it is reduced inside
 * of the calls. If the schedule divides backward passes, the passes of two calls may be in unlike
 * tasks. */
weft_status wefti_decide_late(wefti_decisions *dec) {
    int32_t *part;
    WEFT_TRY(wefti_new_indices(dec->scratch, dec->root->value_count, &part));
    for (int32_t k = 0; k < dec->call_count; k++) {
        const wefti_call_plan *call = &dec->calls[k];
        for (int i = 0; i < call->node->inputs; i++) {
            int32_t v = call->node->in[i];
            if (v < 0 || dec->root->values[v].kind != WEFTI_VALUE_PARAM) continue;
            for (int32_t j = 0; j < k && part[v] >= 0; j++)
                dec->inside[v] |= dec->calls[j].stage == call->stage &&
                                  (dec->split_backward || dec->calls[j].part != call->part) &&
                                  wefti_call_reads(&dec->calls[j], v);
            part[v] = call->part;
        }
    }
    return WEFT_OK;
}

/* Finds the last call of each stage that adds to a gradient. out_key: a digest of them, and of the
 * parts of their backward passes. */
static weft_status find_last_calls(wefti_decisions *dec, uint64_t **out_key) {
    int32_t *part;
    WEFT_TRY(wefti_new_indices(dec->scratch, dec->root->value_count, &part));
    WEFT_TRY(wefti_new_array(dec->scratch, dec->root->value_count, sizeof **out_key, out_key));
    for (int32_t k = 0; k < dec->call_count; k++) {
        const wefti_call_plan *call = &dec->calls[k];
        const wefti_cell_grad *grad = call->differentiated ? &dec->grads[call->grad] : NULL;
        for (int i = 0; grad && i < call->node->inputs; i++) {
            int32_t v = call->node->in[i];
            if (v < 0 || grad->gradient_out[i] < 0 || part[v] == call->part) continue;
            part[v] = call->part;
            bool early = dec->split_backward &&
                         wefti_call_grad(dec, call, WEFTI_PASS_INPUTS)->gradient_out[i] >= 0;
            (*out_key)[v] = wefti_digest_number((*out_key)[v], (uint64_t)k << 1 | early);
            if (call->mine && dec->own_last[v] < 0) dec->own_last[v] = k;
        }
    }
    return WEFT_OK;
}

/* Whether each microbatch reduces the gradient, if there are several. */
static bool reduced_late(const wefti_decisions *dec, int32_t v) {
    const wefti_sharding *x = &dec->sharding[v];
    return dec->late && !dec->inside[v] && !wefti_rows_are(dec, v) &&
           !wefti_layout_equal(&x->use, &x->state) && !wefti_layout_equal(&x->gradient, &x->state);
}

/* Lists the parameters in the order in which their gradients become complete. */
static weft_status completion_order(wefti_decisions *dec, int32_t **out, int64_t *out_count) {
    const weft_body *root = dec->root;
    bool *taken;
    WEFT_TRY(wefti_new_array(dec->scratch, root->value_count, sizeof **out, out));
    WEFT_TRY(wefti_new_array(dec->scratch, root->value_count, sizeof *taken, &taken));
    *out_count = 0;
    for (int32_t k = dec->call_count - 1; k >= 0; k--) {
        const weft_node *n = dec->calls[k].node;
        for (int i = 0; i < n->inputs; i++) {
            int32_t v = n->in[i];
            if (v < 0 || !dec->bound[v] || root->values[v].kind != WEFTI_VALUE_PARAM ||
                !dec->has_gradient[v] || taken[v] || dec->last_backward[v] != k)
                continue;
            taken[v] = true;
            (*out)[(*out_count)++] = v;
        }
    }
    return WEFT_OK;
}

/* Gradients with equal group, dtype and kind of collective may share a bucket. */
static uint64_t fusion_key(const wefti_decisions *dec, int32_t v) {
    const wefti_sharding *x = &dec->sharding[v];
    uint64_t axes = (x->gradient.sum | x->gradient.max) |
                    (uint64_t)wefti_layout_split_axes(&x->state) << 16 |
                    (uint64_t)wefti_layout_split_axes(&x->use) << 32;
    return axes << 8 | (uint64_t)dec->root->values[v].desc.dtype;
}

/* Whether devices communicate between the complete gradient and the parameter's new value. */
static bool is_shared(const wefti_decisions *dec, int32_t v) {
    const wefti_sharding *x = &dec->sharding[v];
    const wefti_layout goal = wefti_gradient_goal(dec, v);
    return dec->part &&
           !(wefti_layout_equal(&x->gradient, &goal) && wefti_layout_equal(&x->state, &x->storage));
}

/* Assigns buckets 0 to *buckets - 1, in order, to the parameters that need communication for their
 * update. The others keep bucket -1. */
static weft_status fuse_shared(wefti_decisions *dec, const int32_t *order, int64_t count,
                               int32_t *bucket, int32_t *buckets) {
    const wefti_fusion *fusion = dec->spec->plan->fusion;
    wefti_fusion_item *items;
    int32_t *of;
    uint64_t *last_calls;
    int64_t shared = 0;
    bool scattered = false;
    WEFT_TRY(find_last_calls(dec, &last_calls));
    WEFT_TRY(wefti_new_array(dec->scratch, count, sizeof *items, &items));
    WEFT_TRY(wefti_new_indices(dec->scratch, count, &of));
    for (int64_t i = 0; i < count; i++) {
        const wefti_sharding *x = &dec->sharding[order[i]];
        if (!is_shared(dec, order[i])) continue;
        /* use the first rank's piece: all ranks must have the same buckets */
        weft_desc here = wefti_layout_local(&x->gradient, &dec->mesh,
                                            wefti_gradient_desc(dec, order[i]), dec->mesh.first);
        uint64_t key = fusion_key(dec, order[i]);
        /* Level 2 has no room for whole gradients of many calls. */
        if (reduced_late(dec, order[i]))
            key =
                wefti_digest_number(key, dec->stages > 1 ? last_calls[order[i]]
                                                         : (uint64_t)dec->last_backward[order[i]]);
        /* alone, so that it is reduced when it is complete, and need not be stored before */
        if (wefti_gradient_space(dec, order[i]) != WEFTI_SPACE_DEVICE)
            key = wefti_digest_number(key, (uint64_t)order[i]);
        items[shared++] = (wefti_fusion_item){weft_desc_bytes(&here), key};
        scattered |= !wefti_layout_equal(&x->use, &x->state);
    }
    WEFT_TRY(wefti_fusion_buckets(&fusion[scattered ? 2 : 0], shared, items, of, buckets));
    dec->fused[scattered ? 2 : 0] += (int32_t)shared;
    for (int64_t i = 0, k = 0; i < count; i++)
        if (is_shared(dec, order[i])) bucket[i] = of[k++];
    return WEFT_OK;
}

/* A gradient that needs no other device has a bucket
 * of its own, so that its parameter is updated as soon as the gradient is complete. */
weft_status wefti_decide_buckets(wefti_decisions *dec) {
    int32_t *order, *bucket, buckets = 0;
    int64_t count;
    WEFT_TRY(completion_order(dec, &order, &count));
    WEFT_TRY(wefti_new_indices(dec->scratch, count, &bucket));
    if (dec->part) WEFT_TRY(fuse_shared(dec, order, count, bucket, &buckets));
    for (int64_t i = 0; i < count; i++)
        if (bucket[i] < 0) bucket[i] = buckets++;
    WEFT_TRY(wefti_new_array(dec->scratch, buckets, sizeof *dec->bucket, &dec->bucket));
    dec->bucket_count = buckets;
    for (int64_t i = 0; i < count; i++) dec->bucket[bucket[i]].count++;
    for (int32_t k = 0; k < buckets; k++) {
        wefti_bucket *x = &dec->bucket[k];
        WEFT_TRY(wefti_new_array(dec->scratch, x->count, sizeof(int32_t), &x->values));
        x->count = 0;
    }
    for (int64_t i = 0; i < count; i++) {
        wefti_bucket *x = &dec->bucket[bucket[i]];
        dec->bucket_of[order[i]] = bucket[i];
        x->each |= dec->spec->microbatches > 1 && reduced_late(dec, order[i]);
        x->values[x->count++] = order[i];
    }
    return WEFT_OK;
}
