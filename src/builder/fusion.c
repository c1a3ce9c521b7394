/* Buckets of collectives. See builder/fusion.h. */
#include "builder/fusion.h"

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
