/* Decides which gradients are reduced together: the buckets of parameters. See builder/fusion.h. */
#include "builder/decide.h"
#include "builder/fusion.h"

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
    return dec->part && !(wefti_layout_equal(&x->gradient, &x->state) &&
                          wefti_layout_equal(&x->state, &x->storage));
}

/* Assigns buckets 0 to *buckets - 1, in order, to the parameters that need communication for their
 * update. The others keep bucket -1. */
static weft_status fuse_shared(wefti_decisions *dec, const int32_t *order, int64_t count,
                               int32_t *bucket, int32_t *buckets) {
    const wefti_fusion *fusion = dec->spec->plan->fusion;
    wefti_fusion_item *items;
    int32_t *of;
    int64_t shared = 0;
    bool scattered = false;
    WEFT_TRY(wefti_new_array(dec->scratch, count, sizeof *items, &items));
    WEFT_TRY(wefti_new_indices(dec->scratch, count, &of));
    for (int64_t i = 0; i < count; i++) {
        const wefti_sharding *x = &dec->sharding[order[i]];
        if (!is_shared(dec, order[i])) continue;
        /* use the first rank's piece: all ranks must have the same buckets */
        weft_desc here = wefti_layout_local(&x->gradient, &dec->mesh,
                                            &dec->root->values[order[i]].desc, dec->mesh.first);
        items[shared++] = (wefti_fusion_item){weft_desc_bytes(&here), fusion_key(dec, order[i])};
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
        x->values[x->count++] = order[i];
    }
    return WEFT_OK;
}
