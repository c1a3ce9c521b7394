/* Sliced steps by themselves: what their manifests may say, and which bytes are read. Runs that
 * write them: tests/train/test_run_sliced.c. */
#include "fixture.h"

#include <signal.h>
#include <sys/wait.h>

#include "checkpoint/run/run.h"
#include "reshard/source.h"
#include "memory_home.h"
#include "sanitized.h"
#include "weft/checkpoint.h"

/* "w" in rows, of which two ranks have one half each; ranks 2 and 3 have the same as 0 and 1. */
enum { RANKS = 4, ROWS = 8, COLUMNS = 32 << 10, HALF = ROWS / 2 * COLUMNS };

static float values[ROWS * COLUMNS];
static const weft_desc whole = {WEFT_F32, 2, {ROWS, COLUMNS}};

static wefti_checkpoint_job *begin_rank(const fixture *f, int32_t rank, int64_t step) {
    static const int32_t holders[2][2] = {{0, 2}, {1, 3}};
    const wefti_checkpoint_tensor w = {.name = "w", .desc = whole};
    const wefti_region all = {{0}, {ROWS / 2, COLUMNS}};
    static memory_home keep[RANKS]; /* the step is written in the background */
    const wefti_checkpoint_piece piece = {
        {{rank % 2 * ROWS / 2}, {ROWS / 2, COLUMNS}},
        memory_home_of(&keep[rank], NULL, values + rank % 2 * HALF, (int64_t)sizeof values / 2)};
    const wefti_checkpoint_tensor own = {.name = "w",
                                         .desc = {WEFT_F32, 2, {ROWS / 2, COLUMNS}},
                                         .pieces = &piece,
                                         .piece_count = 1,
                                         .whole = whole,
                                         .part = &piece.box};
    wefti_checkpoint_slice slices[2];
    for (int h = 0; h < 2; h++) {
        slices[h] = (wefti_checkpoint_slice){.region = all,
                                             .ranks = holders[h],
                                             .rank_count = 2,
                                             .own = rank % 2 == h ? 0 : -1,
                                             .counts = rank == h};
        slices[h].region.begin[0] = h * ROWS / 2;
    }
    const wefti_checkpoint_slicing what = {.rank = rank,
                                           .ranks = RANKS,
                                           .wholes = &w,
                                           .whole_count = 1,
                                           .slices = slices,
                                           .slice_count = 2};
    const wefti_checkpoint_options options = {.duty = WEFTI_CHECKPOINT_SLICES, .slicing = &what};
    const wefti_checkpoint_meta meta = meta_of(step);
    wefti_checkpoint_job *job;
    char *dir;
    ASSERT_OK(wefti_checkpoint_rank_dir(f->dir, rank, &dir));
    ASSERT_OK(wefti_dir_make(dir));
    ASSERT_OK(wefti_checkpoint_begin(dir, &meta, &own, 1, &options, &job));
    wefti_free(dir);
    return job;
}

/* A step of four ranks, which put it into place one after the other; only ranks from `first` on. */
static void write_from(const fixture *f, int64_t step, int first) {
    wefti_checkpoint_job *jobs[RANKS];
    uint32_t sum = 0;
    int64_t bytes = 0, part;
    for (int i = 0; i < ROWS * COLUMNS; i++) values[i] = (float)i;
    for (int r = 0; r < RANKS; r++) jobs[r] = begin_rank(f, r, step);
    for (int r = 0; r < RANKS; r++) {
        wefti_checkpoint_wait_written(jobs[r]);
        sum ^= *wefti_checkpoint_sums(jobs[r], &part);
        bytes += part;
    }
    for (int r = 0; r < RANKS; r++) {
        if (r < first) {
            wefti_checkpoint_cancel(jobs[r]);
            continue;
        }
        wefti_checkpoint_complete(jobs[r], &sum, bytes);
        ASSERT_OK(wefti_checkpoint_finish(jobs[r], NULL));
    }
}

static void write_sliced(const fixture *f) {
    ASSERT_OK(wefti_remove_tree(f->dir));
    ASSERT_OK(wefti_dir_make(f->dir));
    write_from(f, 7, 0);
}

static const char *file_of(const fixture *f, int rank, const char *name) {
    char folder[64];
    (void)snprintf(folder, sizeof folder, "rank_%d/step-000000000007", rank);
    return path_in(path_in(f->dir, folder), name);
}

static void damage_slice(const fixture *f, int rank) {
    const char *path = file_of(f, rank, "slices-model-00001-of-00001.safetensors");
    size_t bytes;
    unsigned char *data = get_file(path, &bytes);
    data[bytes - 5] ^= 1;
    put_file(path, data, bytes);
    free(data);
}

static void assert_values(const wefti_checkpoint *c) {
    static float got[ROWS * COLUMNS];
    ASSERT_OK(wefti_checkpoint_read(c, WEFTI_CHECKPOINT_MODEL, "w", &whole, got));
    assert_memory_equal(got, values, sizeof got);
}

/* Opens the step; returns the calls of the file system. */
static int64_t count_calls(const fixture *f, bool quick) {
    const char *path = file_of(f, 0, ".");
    wefti_checkpoint *c;
    wefti_fault_arm(WEFTI_FAULT_IO, INT64_MAX, false, 0);
    if (quick)
        ASSERT_OK(wefti_checkpoint_open_quick(path, &c));
    else
        ASSERT_OK(wefti_checkpoint_open(path, 7, &c, NULL));
    const int64_t calls = wefti_fault_count(WEFTI_FAULT_IO);
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    assert_values(c);
    wefti_checkpoint_close(c);
    return calls;
}

/* An undamaged step is read once, and only one replica of each region. After damage, slices are
 * read to verify them, and the tensor is read again. */
static void each_region_is_read_once(void **state) {
    const fixture *f = *state;
    const int64_t pieces = (int64_t)sizeof values / WEFTI_READER_PIECE;
    write_sliced(f);
    const int64_t before = count_calls(f, true);
    assert_int_equal(count_calls(f, false), before + pieces);
    damage_slice(f, 0);
    /* the tensor twice; the halves of ranks 0, 2 and 1 */
    assert_int_equal(count_calls(f, false), before + 2 * pieces + 3 * pieces / 2);
}

static void replicas_are_read_in_place_of_damaged_slices(void **state) {
    const fixture *f = *state;
    for (int damaged = 0; damaged < 1 << RANKS; damaged++) {
        const bool lost = (damaged & 5) == 5 || (damaged & 10) == 10;
        wefti_checkpoint *c;
        write_sliced(f);
        for (int r = 0; r < RANKS; r++)
            if (damaged >> r & 1) damage_slice(f, r);
        weft_status status = wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, NULL);
        if (lost) {
            ASSERT_STATUS(WEFT_E_CORRUPT, status);
            ASSERT_MESSAGE((damaged & 5) == 5 ? "rank 0, rank 2" : "rank 1, rank 3");
            ASSERT_MESSAGE("of w|lost");
            continue;
        }
        ASSERT_OK(status);
        assert_values(c);
        /* each piece of the step, by whatever rank */
        int64_t count;
        const wefti_sliced_piece *pieces =
            wefti_sliced_pieces(wefti_checkpoint_sliced(c), 0, &count);
        assert_int_equal(count, RANKS);
        (void)wefti_checkpoint_doubt(c);
        assert_false(wefti_checkpoint_doubt(c));
        for (int64_t k = 0; k < count; k++) {
            static float got[HALF];
            ASSERT_OK(wefti_reader_at(pieces[k].reader, pieces[k].at, sizeof got, got));
            assert_memory_equal(got, values + k / 2 * HALF, sizeof got);
        }
        wefti_checkpoint_close(c);
    }
}

/* Changes the manifests of all ranks. */
static void edit_all(const fixture *f, const char *from, const char *to) {
    write_sliced(f);
    for (int r = 0; r < RANKS; r++) edit_manifest(file_of(f, r, "manifest.json"), from, to, false);
}

static void manifests_are_checked(void **state) {
    static const struct {
        const char *from, *to, *message;
    } rows[] = {
        {"\"begin\": [4, 0], \"size\": [4,", "\"begin\": [3, 0], \"size\": [4,", "overlap"},
        {"\"begin\": [4, 0], \"size\": [4,", "\"begin\": [5, 0], \"size\": [4,", "inside"},
        {"\"begin\": [4, 0], \"size\": [4,", "\"begin\": [4, 0], \"size\": [3,", "elements"},
        {"\"begin\": [4, 0], \"size\": [4,", "\"begin\": [0, 0], \"size\": [8,", "overlap"},
        {"\"begin\": [4, 0]", "\"begin\": [4]", "dimensions"},
        {"\"begin\": [4, 0]", "\"begin\": [4, -1]", "sizes"},
        {"\"ranks\": [1, 3]", "\"ranks\": [3, 1]", "ascending"},
        {"\"ranks\": [1, 3]", "\"ranks\": [1, 4]", "ascending"},
        {"\"ranks\": [1, 3]", "\"ranks\": []", "no rank"},
        {"\"ranks\": 4,", "\"ranks\": 65537,", "ranks"},
        {"{\"tensor\": 0, \"begin\": [0", "{\"tensor\": 1, \"begin\": [0", "tensor"},
    };
    const fixture *f = *state;
    wefti_checkpoint *c;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        edit_all(f, rows[i].from, rows[i].to);
        weft_status status = wefti_checkpoint_open(f->dir, 7, &c, NULL);
        if (status != WEFT_E_CORRUPT || !strstr(weft_error_message(), rows[i].message))
            fail_msg("%s: status %d, \"%s\"", rows[i].to, status, weft_error_message());
    }
}

/* Reading the sources of a conversion takes no longer for many files. */
static void files_of_a_step_have_one_number(void **state) {
    const fixture *f = *state;
    wefti_shards *s;
    write_sliced(f);
    ASSERT_OK(wefti_shards_open(f->dir, NULL, &s));
    assert_int_equal(s->count, 1);
    assert_int_equal(s->tensors[0].count, RANKS);
    assert_int_equal(s->file_count, RANKS);
    for (int r = 0; r < RANKS; r++) assert_int_equal(s->files[r].rank, r / 2 + r % 2 * 2);
    wefti_shards_close(s);
}

/* ---- kills between the ranks ---- */

/* Whether the run has steps 6 and 7; all commands on checkpoints must agree on that. Nothing is
 * damaged. */
static int steps_there(const fixture *f) {
    int64_t *steps, count;
    char *text = NULL, *note = NULL, newest[32];
    wefti_checkpoint *c;
    ASSERT_OK(wefti_checkpoint_list(f->dir, &steps, &count));
    int found = 0;
    for (int64_t i = 0; i < count; i++) found |= 1 << (steps[i] - 6);
    wefti_free(steps);
    const weft_status status = weft_checkpoint_verify(f->dir, 0, &text);
    if (!found) {
        ASSERT_STATUS(WEFT_E_NOT_FOUND, status);
        weft_checkpoint_text_free(text);
        ASSERT_STATUS(WEFT_E_NOT_FOUND,
                      wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, NULL));
        return 0;
    }
    ASSERT_OK(status);
    assert_null(strstr(text, "DAMAGED"));
    assert_true(!strstr(text, "006     good") == !(found & 1));
    assert_true(!strstr(text, "007     good") == !(found & 2));
    weft_checkpoint_text_free(text);
    ASSERT_OK(wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, &note));
    assert_int_equal(wefti_checkpoint_meta_of(c)->step, found & 2 ? 7 : 6);
    assert_values(c);
    wefti_checkpoint_close(c);
    wefti_free(note);
    ASSERT_OK(weft_checkpoint_describe(f->dir, 0, &text));
    (void)snprintf(newest, sizeof newest, "step         %d,", found & 2 ? 7 : 6);
    assert_non_null(strstr(text, newest));
    assert_true(found != 3 || strstr(text, "steps        6 7"));
    weft_checkpoint_text_free(text);
    return found;
}

/* The next start, from step `restored`. */
static void start_again(const fixture *f, int64_t restored) {
    for (int r = 0; r < RANKS; r++) {
        wefti_checkpoint_lock *lock;
        char *dir;
        ASSERT_OK(wefti_checkpoint_rank_dir(f->dir, r, &dir));
        ASSERT_OK(wefti_checkpoint_lock_open(dir, &lock));
        ASSERT_OK(wefti_checkpoint_clean_sliced(f->dir, r, restored));
        assert_tidy(dir);
        wefti_checkpoint_lock_close(lock);
        wefti_free(dir);
    }
}

/* Runs `work` in a process that is killed at I/O call `nth`. False: it has ended before. */
static bool is_killed(const fixture *f, void (*work)(const fixture *f), int64_t nth) {
    int result;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        wefti_fault_arm(WEFTI_FAULT_IO, nth, false, WEFTI_FAULT_KILLS);
        work(f);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result) ? WTERMSIG(result) == SIGKILL : result == 0);
    return WIFSIGNALED(result);
}

static void write_seventh(const fixture *f) {
    write_from(f, 7, 0);
}

/* A kill at each call of the file system while four ranks write, one after the other. The step is
 * there or unfinished, and never damaged. The next start leaves nothing of an unfinished one. */
static void a_kill_leaves_no_damage(void **state) {
    const fixture *f = *state;
    int64_t nth = 0, unfinished = 0;
    if (SANITIZED_THREAD) SKIP("the thread sanitizer does not follow a fork");
    for (int before = 0; before < 2; before++) {
        bool killed = true;
        for (nth = 0; killed; nth += SANITIZED ? 5 : before ? 1 : 3) {
            ASSERT_OK(wefti_remove_tree(f->dir));
            ASSERT_OK(wefti_dir_make(f->dir));
            if (before) write_from(f, 6, 0);
            killed = is_killed(f, write_seventh, nth);
            const int found = steps_there(f);
            assert_true(killed || found & 2);
            int64_t *steps, count;
            ASSERT_OK(wefti_run_steps(f->dir, &steps, &count));
            wefti_free(steps);
            unfinished += count == before + 1 && !(found & 2);
            start_again(f, found & 2 ? 7 : before ? 6 : 0);
            ASSERT_OK(wefti_run_steps(f->dir, &steps, &count));
            wefti_free(steps);
            assert_int_equal(count, before + (found >> 1));
            assert_int_equal(steps_there(f), found);
            write_seventh(f);
            assert_int_equal(steps_there(f), before ? 3 : 2);
        }
    }
    assert_true(unfinished > 0);
}

static void prune_to_one(const fixture *f) {
    for (int r = 0; r < RANKS; r++) {
        char *dir;
        ASSERT_OK(wefti_checkpoint_rank_dir(f->dir, r, &dir));
        ASSERT_OK(wefti_checkpoint_prune_below(dir, 1, 7));
        wefti_free(dir);
    }
}

/* The same while the ranks remove a step. */
static void a_kill_while_pruning_leaves_no_damage(void **state) {
    const fixture *f = *state;
    bool killed = true;
    if (SANITIZED_THREAD) SKIP("the thread sanitizer does not follow a fork");
    for (int64_t nth = 0; killed; nth += SANITIZED ? 3 : 1) {
        ASSERT_OK(wefti_remove_tree(f->dir));
        ASSERT_OK(wefti_dir_make(f->dir));
        write_from(f, 6, 0);
        write_from(f, 7, 0);
        killed = is_killed(f, prune_to_one, nth);
        assert_true(steps_there(f) & 2);
        start_again(f, 7);
        prune_to_one(f);
        assert_int_equal(steps_there(f), 2);
    }
}

/* A part that a rank had is lost, not unfinished. */
static void a_lost_part_is_damage(void **state) {
    const fixture *f = *state;
    wefti_checkpoint *c;
    char *text;
    write_sliced(f);
    for (int r = 0; r < RANKS; r += 2) ASSERT_OK(wefti_remove_tree(file_of(f, r, "")));
    ASSERT_STATUS(WEFT_E_CORRUPT, wefti_checkpoint_open(f->dir, 7, &c, NULL));
    ASSERT_STATUS(WEFT_E_CORRUPT, weft_checkpoint_verify(f->dir, 0, &text));
    assert_non_null(strstr(text, "DAMAGED"));
    weft_checkpoint_text_free(text);
    start_again(f, 0);
    assert_true(wefti_exists(file_of(f, 1, "manifest.json")));
}

/* `keep` counts steps that can be read. */
static void unfinished_steps_do_not_count(void **state) {
    const fixture *f = *state;
    int64_t *steps, count;
    write_sliced(f);
    write_from(f, 8, 0);
    write_from(f, 9, 1);
    write_from(f, 10, 3);
    ASSERT_OK(wefti_checkpoint_prune(f->dir, 2));
    ASSERT_OK(wefti_checkpoint_list(f->dir, &steps, &count));
    assert_int_equal(count, 2); /* ranks 1 to 3 have all of step 9 */
    assert_int_equal(steps[0], 8);
    wefti_free(steps);
    char *text = NULL;
    ASSERT_STATUS(WEFT_E_NOT_FOUND,
                  weft_checkpoint_verify(path_in(f->dir, "rank_3/step-000000000010"), 0, &text));
    assert_non_null(strstr(text, "unfinished: step 10 of "));
    weft_checkpoint_text_free(text);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_region_is_read_once, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(replicas_are_read_in_place_of_damaged_slices, fixture_begin,
                                        fixture_end),
        cmocka_unit_test_setup_teardown(manifests_are_checked, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(files_of_a_step_have_one_number, fixture_begin,
                                        fixture_end),
        cmocka_unit_test_setup_teardown(a_kill_leaves_no_damage, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(a_kill_while_pruning_leaves_no_damage, fixture_begin,
                                        fixture_end),
        cmocka_unit_test_setup_teardown(a_lost_part_is_damage, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(unfinished_steps_do_not_count, fixture_begin, fixture_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
