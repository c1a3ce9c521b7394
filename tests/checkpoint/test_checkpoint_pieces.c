/* Tensors in pieces: the files equal the files of the whole tensors, byte for byte, for every cut.
 * Also the regions in which a tensor is traversed. */
#include "fixture.h"
#include "memory_home.h"

#include "layout/slab.h"
#include "layout/transfer.h"
#include "tensor/tensor.h"

enum { CUTS = 24, MAX_PIECES = 64 };
static uint64_t random_seed;

static uint64_t roll(uint64_t *at, uint64_t below) {
    return wefti_philox_u32(random_seed, 1, (*at)++) % below;
}

/* ---- regions ---- */

static void slabs_are_what_memory_holds(void **state) {
    (void)state;
    uint64_t at = 0;
    for (int round = 0; round < 400; round++) {
        weft_desc whole = {WEFT_F32, (int)roll(&at, 5), {0}};
        for (int d = 0; d < whole.rank; d++) whole.shape[d] = 1 + (int64_t)roll(&at, 7);
        int64_t elems = weft_desc_elems(&whole), strides[WEFT_MAX_RANK];
        wefti_strides(&whole, strides);
        int64_t first = (int64_t)roll(&at, (uint64_t)elems), boxes = 0;
        int64_t most = 1 + (int64_t)roll(&at, (uint64_t)elems + 3);
        for (int64_t next = first; next < elems; boxes++) {
            wefti_region box;
            int64_t count = wefti_slab(&whole, next, most, &box);
            assert_true(count >= 1 && count <= most);
            assert_int_equal(wefti_region_elems(&box, whole.rank), count);
            for (int64_t e = 0; e < count; e++) {
                int64_t place = 0, rest = e;
                for (int d = whole.rank - 1; d >= 0; rest /= box.size[d--])
                    place += (box.begin[d] + rest % box.size[d]) * strides[d];
                assert_int_equal(place, next + e);
            }
            next += count;
        }
        if (most >= elems && first == 0) assert_int_equal(boxes, 1);
    }
}

/* ---- files ---- */

/* Pieces lie in the memory of a device that the host cannot reach. A write copies them out of
 * it. */
typedef struct cut {
    wefti_checkpoint_piece pieces[MAX_PIECES];
    int64_t count;
    wefti_device *device;
    unsigned char *memory;
    memory_home keep;
    wefti_home home;
    int64_t used;
} cut;

enum { DEVICE_BYTES = 4 << 20 };

static void begin_cut(cut *c) {
    void *memory;
    *c = (cut){.count = 0};
    ASSERT_OK(wefti_device_open(&wefti_device_fenced, &c->device));
    ASSERT_OK(c->device->table->allocate(c->device, WEFTI_SPACE_DEVICE, DEVICE_BYTES, &memory));
    c->memory = memory;
    c->home = memory_home_of(&c->keep, c->device, memory, DEVICE_BYTES);
}

/* Cut a dimension in up to four parts, then each of them on. */
static void cut_box(cut *c, const weft_desc *whole, const unsigned char *data, wefti_region box,
                    int d, uint64_t *at) {
    if (d < whole->rank && c->count < MAX_PIECES / 4) {
        int32_t parts = 1 + (int32_t)roll(at, 4);
        for (int32_t i = 0; i < parts; i++) {
            wefti_region part = box;
            wefti_part(whole->shape[d], 1, parts, i, &part.begin[d], &part.size[d]);
            cut_box(c, whole, data, part, d + 1, at);
        }
        return;
    }
    size_t size = weft_dtype_bytes(whole->dtype);
    wefti_region all = {{0}, {0}};
    for (; d < whole->rank; d++) box.size[d] = whole->shape[d];
    for (int i = 0; i < whole->rank; i++) all.size[i] = whole->shape[i];
    void *copy = malloc((size_t)wefti_region_elems(&box, whole->rank) * size + 1);
    if (wefti_region_elems(&box, whole->rank))
        wefti_region_copy(&box, &all, data, &box, copy, whole->rank, size);
    int64_t bytes = wefti_region_elems(&box, whole->rank) * (int64_t)size;
    wefti_home place = c->home;
    place.offset = c->used;
    place.bytes = bytes;
    c->used += (bytes + 63) / 64 * 64;
    assert_true(c->count < MAX_PIECES && c->used <= DEVICE_BYTES);
    ASSERT_OK(wefti_home_write(&place, 0, bytes, copy));
    free(copy);
    c->pieces[c->count++] = (wefti_checkpoint_piece){box, place};
}

static void free_cut(cut *c) {
    c->device->table->free(c->device, WEFTI_SPACE_DEVICE, c->memory, DEVICE_BYTES);
    wefti_device_close(c->device);
}

static void assert_same_step(const char *a, const char *b) {
    static const char *const names[] = {"model.safetensors", "optimizer-00001-of-00001.safetensors",
                                        "manifest.json"};
    for (int i = 0; i < 3; i++) {
        size_t bytes[2];
        unsigned char *x = get_file(path_in(a, names[i]), &bytes[0]);
        unsigned char *y = get_file(path_in(b, names[i]), &bytes[1]);
        assert_int_equal(bytes[0], bytes[1]);
        assert_memory_equal(x, y, bytes[0]);
        free(x);
        free(y);
    }
}

/* Two tensors. One is larger than a block; one is stored as three, each a third of it. */
static void files_are_those_of_the_whole(void **state) {
    const fixture *f = *state;
    uint64_t at = 1000;
    weft_desc descs[2] = {{WEFT_F32, 3, {7, 45, 509}}, {WEFT_BF16, 2, {21, 5}}};
    weft_desc third = {WEFT_BF16, 1, {35}};
    unsigned char *data[2];
    for (int t = 0; t < 2; t++) {
        int64_t bytes = weft_desc_bytes(&descs[t]);
        data[t] = malloc((size_t)bytes);
        for (int64_t i = 0; i < bytes; i++) data[t][i] = (unsigned char)roll(&at, 256);
    }
    const char *names[4] = {"large", "part.0", "part.1", "part.2"};
    wefti_checkpoint_meta meta = meta_of(3);
    char whole_dir[300], cut_dir[300];
    (void)snprintf(whole_dir, sizeof whole_dir, "%s/whole", f->root);
    (void)snprintf(cut_dir, sizeof cut_dir, "%s/cut", f->root);
    wefti_checkpoint_tensor tensors[4] = {{.name = names[0], .desc = descs[0], .data = data[0]}};
    for (int i = 0; i < 3; i++)
        tensors[1 + i] = (wefti_checkpoint_tensor){.name = names[1 + i],
                                                   .role = WEFTI_CHECKPOINT_OPTIMIZER,
                                                   .desc = third,
                                                   .data = data[1] + i * 70};
    wefti_checkpoint_lock *lock;
    ASSERT_OK(wefti_checkpoint_lock_open(whole_dir, &lock));
    ASSERT_OK(wefti_checkpoint_write(whole_dir, &meta, tensors, 4, NULL, NULL));
    wefti_checkpoint_lock_close(lock);
    ASSERT_OK(wefti_checkpoint_lock_open(cut_dir, &lock));
    for (int round = 0; round < CUTS; round++) {
        cut cuts[2];
        for (int t = 0; t < 2; t++) {
            begin_cut(&cuts[t]);
            cut_box(&cuts[t], &descs[t], data[t], (wefti_region){{0}, {0}}, 0, &at);
        }
        for (int i = 0; i < 4; i++) {
            tensors[i].data = NULL;
            tensors[i].pieces = cuts[i > 0].pieces;
            tensors[i].piece_count = cuts[i > 0].count;
            tensors[i].whole = descs[i > 0];
            tensors[i].first = i > 0 ? (i - 1) * 35 : 0;
        }
        ASSERT_OK(wefti_checkpoint_write(cut_dir, &meta, tensors, 4, NULL, NULL));
        assert_same_step(path_in(whole_dir, "step-000000000003"),
                         path_in(cut_dir, "step-000000000003"));
        for (int t = 0; t < 2; t++) free_cut(&cuts[t]);
    }
    wefti_checkpoint_lock_close(lock);
    for (int t = 0; t < 2; t++) free(data[t]);
}

/* ---- several processes ---- */

enum { WRITERS = 3 };

/* The leader prepares and begins; the others join. Writer w has every third piece. */
static void write_together(const char *dir, const wefti_checkpoint_meta *meta,
                           const wefti_checkpoint_tensor *tensors, const cut *cuts,
                           int64_t shard_bytes) {
    wefti_checkpoint_job *jobs[WRITERS];
    uint64_t number;
    uint32_t sums[4] = {0};
    int64_t bytes = 0;
    ASSERT_OK(wefti_checkpoint_prepare(dir, meta->step, &number));
    assert_true(wefti_checkpoint_sees(dir, meta->step, number));
    assert_false(wefti_checkpoint_sees(dir, meta->step, number + 1));
    for (int w = 0; w < WRITERS; w++) {
        wefti_checkpoint_options options = {.shard_bytes = shard_bytes,
                                            .duty = w ? WEFTI_CHECKPOINT_JOINS
                                                      : WEFTI_CHECKPOINT_LEADS};
        wefti_checkpoint_piece own[2][MAX_PIECES];
        int64_t count[2] = {0};
        for (int c = 0; c < 2; c++)
            for (int64_t i = w; i < cuts[c].count; i += WRITERS)
                own[c][count[c]++] = cuts[c].pieces[i];
        wefti_checkpoint_tensor mine[4];
        memcpy(mine, tensors, sizeof mine);
        for (int i = 0; i < 4; i++) {
            mine[i].pieces = own[i > 0];
            mine[i].piece_count = count[i > 0];
        }
        ASSERT_OK(wefti_checkpoint_begin(dir, meta, mine, 4, &options, &jobs[w]));
    }
    for (int w = 0; w < WRITERS; w++) {
        int64_t own;
        wefti_checkpoint_wait_written(jobs[w]);
        ASSERT_OK(wefti_checkpoint_written(jobs[w]));
        for (int i = 0; i < 4; i++) sums[i] ^= wefti_checkpoint_sums(jobs[w], &own)[i];
        bytes += own;
    }
    assert_int_equal(wefti_checkpoint_poll(jobs[0]), WEFT_PENDING); /* no step yet */
    wefti_checkpoint_complete(jobs[0], sums, bytes);
    for (int w = 0; w < WRITERS; w++) ASSERT_OK(wefti_checkpoint_finish(jobs[w], NULL));
}

/* Whatever the pieces and however they are dealt out: the files are those of one process. */
static void several_processes_write_the_same_files(void **state) {
    const fixture *f = *state;
    uint64_t at = 77000;
    weft_desc descs[2] = {{WEFT_F32, 3, {7, 45, 509}}, {WEFT_BF16, 2, {21, 5}}};
    weft_desc third = {WEFT_BF16, 1, {35}};
    unsigned char *data[2];
    for (int t = 0; t < 2; t++) {
        int64_t bytes = weft_desc_bytes(&descs[t]);
        data[t] = malloc((size_t)bytes);
        for (int64_t i = 0; i < bytes; i++) data[t][i] = (unsigned char)roll(&at, 256);
    }
    const char *names[4] = {"large", "part.0", "part.1", "part.2"};
    wefti_checkpoint_meta meta = meta_of(3);
    const char *whole_dir = path_in(f->root, "whole"), *cut_dir = path_in(f->root, "cut");
    char dirs[2][300];
    (void)snprintf(dirs[0], sizeof dirs[0], "%s", whole_dir);
    (void)snprintf(dirs[1], sizeof dirs[1], "%s", cut_dir);
    wefti_checkpoint_lock *locks[2];
    for (int d = 0; d < 2; d++) ASSERT_OK(wefti_checkpoint_lock_open(dirs[d], &locks[d]));
    for (int round = 0; round < CUTS; round++) {
        cut cuts[2];
        wefti_checkpoint_tensor tensors[4];
        for (int t = 0; t < 2; t++) {
            begin_cut(&cuts[t]);
            cut_box(&cuts[t], &descs[t], data[t], (wefti_region){{0}, {0}}, 0, &at);
        }
        for (int i = 0; i < 4; i++)
            tensors[i] = (wefti_checkpoint_tensor){.name = names[i],
                                                   .role = i ? WEFTI_CHECKPOINT_OPTIMIZER
                                                             : WEFTI_CHECKPOINT_MODEL,
                                                   .desc = i ? third : descs[0],
                                                   .pieces = cuts[i > 0].pieces,
                                                   .piece_count = cuts[i > 0].count,
                                                   .whole = descs[i > 0],
                                                   .first = i > 0 ? (i - 1) * 35 : 0};
        ASSERT_OK(wefti_checkpoint_write(dirs[0], &meta, tensors, 4, NULL, NULL));
        write_together(dirs[1], &meta, tensors, cuts, 0);
        assert_same_step(path_in(dirs[0], "step-000000000003"),
                         path_in(dirs[1], "step-000000000003"));
        ASSERT_OK(wefti_checkpoint_verify(path_in(dirs[1], "step-000000000003")));
        assert_tidy(dirs[1]);
        /* one file a tensor: buffers change hands */
        write_together(dirs[1], &meta, tensors, cuts, 1);
        ASSERT_OK(wefti_checkpoint_verify(path_in(dirs[1], "step-000000000003")));
        for (int t = 0; t < 2; t++) free_cut(&cuts[t]);
    }
    for (int d = 0; d < 2; d++) wefti_checkpoint_lock_close(locks[d]);
    for (int t = 0; t < 2; t++) free(data[t]);
}

/* A step of several processes that is given up at any moment leaves the step before it. */
static void given_up_together(void **state) {
    const fixture *f = *state;
    float data[12] = {1, 2, 3};
    weft_desc desc = {WEFT_F32, 2, {3, 4}};
    wefti_checkpoint_lock *lock;
    ASSERT_OK(wefti_checkpoint_lock_open(f->dir, &lock));
    ASSERT_OK(write_step(f->dir, 5, 0));
    for (int when = 0; when < 4; when++) {
        wefti_checkpoint_meta meta = meta_of(5);
        memory_home of_top, of_rest;
        wefti_checkpoint_piece top = {{{0, 0}, {2, 4}}, memory_home_of(&of_top, NULL, data, 32)},
                               rest = {{{2, 0}, {1, 4}},
                                       memory_home_of(&of_rest, NULL, data + 8, 16)};
        wefti_checkpoint_tensor t = {
            .name = "t", .desc = desc, .pieces = &top, .piece_count = 1, .whole = desc};
        wefti_checkpoint_options options = {.duty = WEFTI_CHECKPOINT_LEADS};
        wefti_checkpoint_job *leader = NULL, *other = NULL;
        uint64_t number;
        ASSERT_OK(wefti_checkpoint_prepare(f->dir, 5, &number));
        if (when > 0) ASSERT_OK(wefti_checkpoint_begin(f->dir, &meta, &t, 1, &options, &leader));
        t.pieces = &rest;
        options.duty = WEFTI_CHECKPOINT_JOINS;
        if (when > 1) ASSERT_OK(wefti_checkpoint_begin(f->dir, &meta, &t, 1, &options, &other));
        if (when > 2) wefti_checkpoint_wait_written(other);
        if (when == 0) wefti_checkpoint_unprepare(f->dir, 5);
        wefti_checkpoint_cancel(leader);
        wefti_checkpoint_cancel(other);
        assert_tidy(f->dir);
        wefti_checkpoint *c;
        ASSERT_OK(wefti_checkpoint_open(f->dir, 5, &c, NULL));
        assert_model(c, 5);
        wefti_checkpoint_close(c);
    }
    wefti_checkpoint_lock_close(lock);
}

/* A part that is missing is found when the step is to be completed. */
static void a_missing_part_is_found(void **state) {
    const fixture *f = *state;
    float data[12] = {1, 2, 3};
    weft_desc desc = {WEFT_F32, 2, {3, 4}};
    wefti_checkpoint_meta meta = meta_of(1);
    memory_home keep;
    wefti_checkpoint_piece top = {{{0, 0}, {2, 4}}, memory_home_of(&keep, NULL, data, 32)};
    wefti_checkpoint_tensor t = {
        .name = "t", .desc = desc, .pieces = &top, .piece_count = 1, .whole = desc};
    wefti_checkpoint_options options = {.duty = WEFTI_CHECKPOINT_LEADS};
    wefti_checkpoint_job *job;
    wefti_checkpoint_lock *lock;
    uint64_t number;
    int64_t bytes;
    ASSERT_OK(wefti_checkpoint_lock_open(f->dir, &lock));
    ASSERT_OK(wefti_checkpoint_prepare(f->dir, 1, &number));
    ASSERT_OK(wefti_checkpoint_begin(f->dir, &meta, &t, 1, &options, &job));
    wefti_checkpoint_wait_written(job);
    const uint32_t sum = *wefti_checkpoint_sums(job, &bytes);
    assert_int_equal(bytes, 32);
    wefti_checkpoint_complete(job, &sum, bytes);
    ASSERT_STATUS(WEFT_E_BUG, wefti_checkpoint_finish(job, NULL));
    assert_tidy(f->dir);
    wefti_checkpoint_lock_close(lock);
}

/* ---- illegal pieces ---- */

static void pieces_must_cover_the_tensor(void **state) {
    const fixture *f = *state;
    float data[12] = {0};
    weft_desc desc = {WEFT_F32, 2, {3, 4}};
    wefti_checkpoint_meta meta = meta_of(1);
    const struct {
        wefti_region box[2];
        int64_t first;
        const char *says;
    } bad[] = {
        {{{{0, 0}, {2, 4}}, {{1, 0}, {2, 4}}}, 0, "0|1"},
        {{{{0, 0}, {2, 4}}, {{2, 0}, {1, 3}}}, 0, "have 11 elements of 12"},
        {{{{0, 0}, {2, 4}}, {{2, 0}, {2, 4}}}, 0, "piece 1"},
        {{{{0, 0}, {2, 4}}, {{3, 0}, {1, 4}}}, 0, "piece 1"},
        {{{{0, 0}, {2, 4}}, {{2, 0}, {1, 4}}}, 1, "from element 1 on"},
        {{{{0, 0}, {2, 4}}, {{2, 0}, {1, 4}}}, -1, "from element -1 on"},
    };
    wefti_checkpoint_lock *lock;
    ASSERT_OK(wefti_checkpoint_lock_open(f->dir, &lock));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memory_home keep;
        const wefti_home home = memory_home_of(&keep, NULL, data, sizeof data);
        wefti_checkpoint_piece pieces[2] = {{bad[i].box[0], home}, {bad[i].box[1], home}};
        wefti_checkpoint_tensor t = {.name = "t",
                                     .desc = desc,
                                     .pieces = pieces,
                                     .piece_count = 2,
                                     .whole = desc,
                                     .first = bad[i].first};
        ASSERT_STATUS(WEFT_E_ARG, wefti_checkpoint_write(f->dir, &meta, &t, 1, NULL, NULL));
        ASSERT_MESSAGE(bad[i].says);
    }
    wefti_checkpoint_lock_close(lock);
}

int main(void) {
    random_seed = test_seed(5);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slabs_are_what_memory_holds),
        cmocka_unit_test_setup_teardown(files_are_those_of_the_whole, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(several_processes_write_the_same_files, fixture_begin,
                                        fixture_end),
        cmocka_unit_test_setup_teardown(given_up_together, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(a_missing_part_is_found, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(pieces_must_cover_the_tensor, fixture_begin, fixture_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
