/* When a run saves and when it ends: by the clock, after failures, and by a file that asks for it.
 */
#include "run_members.h"

#include <errno.h>
#include <time.h>

#include "base/fault.h"

/* ---- worlds ---- */

/* The job of rank r is `w` and the word more[r] (NULL: none). */
static void run_each(const words *w, const char *const *more, int count, rank_work *work,
                     member *members, rank_of_world *ranks) {
    weft_job *jobs[MOST_RANKS];
    for (int r = 0; r < count; r++) {
        words own = *w;
        if (more && more[r]) add_word(&own, "%s", more[r]);
        members[r].job = jobs[r] = job_of(&own);
    }
    run_world(count, work, members, sizeof *members, ranks);
    for (int r = 0; r < count; r++) weft_job_free(jobs[r]);
}

static void remove_run(const char *dir) {
    ASSERT_OK(wefti_remove_tree(in_root(dir)));
}

/* ---- checkpoint.seconds ---- */

/* So few seconds that every step is late, and so many that none is. */
static void steps_by_the_clock(void **state) {
    (void)state;
    words w = tiny_gpt2();
    record often = {.first = 0}, never = {.first = 0};
    add_words(&w, WITH("train.steps=6", "checkpoint.keep=9"));
    ASSERT_OK(run_with(&w, WITH(dir_word("often"), "checkpoint.seconds=1e-9"), &often));
    assert_int_equal(often.checkpoints, 6);
    for (int i = 0; i < 6; i++) assert_int_equal(often.checkpoint_steps[i], i + 1);
    ASSERT_OK(run_with(&w, WITH(dir_word("never"), "checkpoint.seconds=1e9"), &never));
    assert_int_equal(never.checkpoints, 1);
    assert_int_equal(never.checkpoint_steps[0], 6);
    assert_same_checkpoint(step_path("often", 6), step_path("never", 6));
    /* The step that a run goes on from is not written again. */
    record rest = {.first = 0};
    ASSERT_OK(
        run_with(&w, WITH(dir_word("never"), "train.steps=8", "checkpoint.seconds=1e-9"), &rest));
    assert_int_equal(rest.first, 7);
    assert_int_equal(rest.checkpoints, 2);
    assert_int_equal(rest.checkpoint_steps[0], 7);
}

/* Rank 0's clock counts for all ranks, also where a rank gathers for another one. */
static void all_ranks_save_the_same_step(void **state) {
    (void)state;
    for (int i = 0; i < LAYOUTS; i++)
        for (int apart = 0; apart < 2; apart++) {
            const devices *d = &layouts[i];
            words w = job_words(5);
            static member members[MOST_RANKS];
            rank_of_world ranks[MOST_RANKS];
            const char *more[MOST_RANKS] = {NULL};
            memset(members, 0, sizeof members);
            add_devices(&w, d);
            add_words(&w, WITH(dir_word("clock"), "checkpoint.seconds=1e-9", "checkpoint.keep=9"));
            if (apart) more[1] = dir_word("other");
            run_each(&w, more, d->count, run_member, members, ranks);
            assert_all_ok(ranks, d->count, d->name);
            assert_int_equal(members[0].record.checkpoints, 5);
            for (int64_t s = 1; s <= 5; s++) {
                assert_int_equal(members[0].record.checkpoint_steps[s - 1], s);
                ASSERT_OK(wefti_checkpoint_verify(step_path("clock", s)));
            }
            remove_run("clock");
        }
}

static void ranks_with_other_rules_are_refused(void **state) {
    (void)state;
    words w = job_words(2);
    static member members[2];
    rank_of_world ranks[2];
    const char *more[2] = {"checkpoint.seconds=5", "checkpoint.seconds=6"};
    add_devices(&w, &layouts[0]);
    add_word(&w, "%s", dir_word("rules"));
    run_each(&w, more, 2, run_member, members, ranks);
    for (int r = 0; r < 2; r++)
        assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, "checkpoint.seconds");
}

/* ---- checkpoint.keep_minutes ---- */

/* accept 30(c): all steps of a test lie within one minute: the first stays beside the newest. */
static void the_first_of_a_minute_stays(void **state) {
    (void)state;
    words w = tiny_gpt2();
    record r = {.first = 0};
    add_words(&w, WITH(dir_word("minutes"), "checkpoint.every=1", "checkpoint.keep=2",
                       "checkpoint.keep_minutes=1000000", "train.steps=7"));
    time_t before = time(NULL);
    ASSERT_OK(run_words(&w, &r));
    int64_t *steps, count;
    ASSERT_OK(wefti_checkpoint_list(in_root("minutes"), &steps, &count));
    assert_int_equal(count, 3);
    assert_int_equal(steps[0], 1);
    assert_int_equal(steps[1], 6);
    assert_int_equal(steps[2], 7);
    wefti_free(steps);
    wefti_checkpoint *c;
    ASSERT_OK(wefti_checkpoint_open(in_root("minutes"), 1, &c, NULL));
    const char *text =
        wefti_checkpoint_value(&wefti_checkpoint_meta_of(c)->notes, WEFTI_CHECKPOINT_TIME);
    assert_non_null(text);
    assert_in_range(strtoll(text, NULL, 10), before, time(NULL));
    wefti_checkpoint_close(c);
    /* Another run goes on and keeps by the same rule. */
    ASSERT_OK(run_with(&w, WITH("train.steps=9"), &r));
    ASSERT_OK(wefti_checkpoint_list(in_root("minutes"), &steps, &count));
    assert_int_equal(count, 3);
    assert_int_equal(steps[0], 1);
    wefti_free(steps);
}

/* ---- checkpoint.on_error ---- */

/* 64 images of 8 elements; of those from `bad` on, the first element is no number. */
static void write_images(int bad) {
    enum { IMAGES = 64, ELEMS = 8 };
    float pixels[IMAGES][ELEMS];
    int64_t classes[IMAGES];
    buffer images = {.count = 0}, labels = {.count = 0};
    for (int i = 0; i < IMAGES; i++) {
        classes[i] = i % 4;
        for (int k = 0; k < ELEMS; k++) pixels[i][k] = (float)((i * 5 + k * 3) % 16) / 16;
        pixels[i][i % 4] += 1;
        if (bad >= 0 && i >= bad) pixels[i][0] = NAN;
    }
    put_npy(&images, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (64, 1, 1, 8), }",
            pixels, sizeof pixels);
    put_npy(&labels, 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (64,), }", classes,
            sizeof classes);
    (void)put_file("images.npy", images.bytes, (size_t)images.count);
    (void)put_file("labels.npy", labels.bytes, (size_t)labels.count);
}

static words image_words(const char *dir, int devices) {
    words w = {.count = 0};
    add_words(&w,
              WITH("model.family=mlp", "model.hidden=8", "model.image=[1, 1, 8]", "model.classes=4",
                   "data.format=npy", "data.validation=0", "train.steps=40", "train.batch=4",
                   "train.eval_every=0", "device.threads=1", "train.schedule.warmup=0",
                   "train.schedule.name=constant", "checkpoint.on_error=true"));
    add_word(&w, "data.path=%s", in_root("images.npy"));
    add_word(&w, "data.labels=%s", in_root("labels.npy"));
    if (devices > 1) add_word(&w, "parallel.devices=%d", devices);
    add_word(&w, "%s", dir_word(dir));
    return w;
}

/* The newest step of `dir` is `step`; the run went on from it has the losses and the tensors of
 * `whole`. */
static void assert_goes_on(const char *dir, const words *w, int64_t step, const char *whole_dir,
                           const record *whole) {
    record rest = {.first = 0};
    int64_t newest;
    assert_int_equal(steps_in(dir, &newest), 1);
    assert_int_equal(newest, step);
    ASSERT_OK(run_words(w, &rest));
    assert_int_equal(rest.first, step + 1);
    for (int64_t s = rest.first; s <= rest.last; s++)
        assert_memory_equal(&rest.losses[s], &whole->losses[s], sizeof(double));
    assert_same_checkpoint(step_path(dir, rest.last), step_path(whole_dir, whole->last));
}

/* A sample that cannot be used, in one of the ranks or in the only one. The step before it is
 * saved. With good data the run goes on with the bits of an undisturbed one. */
static void bad_data_lose_no_step(void **state) {
    (void)state;
    static const char *const splits[] = {NULL, "parallel.optimizer.level=3",
                                         "parallel.pipeline.stages=2"};
    for (int devices = 1; devices <= 4; devices *= 2)
        for (int k = 0; k < (devices > 1 ? 3 : 1); k++) {
            words w = image_words("error", devices), whole_words = image_words("whole", devices);
            if (splits[k]) add_words(&w, WITH(splits[k]));
            if (splits[k]) add_words(&whole_words, WITH(splits[k]));
            record whole = {.first = 0};
            static member members[MOST_RANKS];
            rank_of_world ranks[MOST_RANKS];
            memset(members, 0, sizeof members);
            write_images(-1);
            ASSERT_OK(run_words(&whole_words, &whole));
            write_images(63); /* the last sample, wherever it comes */
            if (devices == 1) {
                ASSERT_FAILS(WEFT_E_NUMERIC, "image 63", run_words(&w, &members[0].record));
            } else {
                run_each(&w, NULL, devices, run_member, members, ranks);
                for (int r = 0; r < devices; r++)
                    if (ranks[r].status >= 0 || !has_facts(ranks[r].message, "image 63"))
                        fail_msg("rank %d: status %d, \"%s\"", r, ranks[r].status,
                                 ranks[r].message);
            }
            int64_t last = members[0].record.last;
            assert_in_range(last, 1, 16);
            assert_string_equal(members[0].record.result.checkpoint, step_path("error", last));
            write_images(-1);
            add_words(&w, WITH("checkpoint.other_data=true")); /* they have been repaired */
            assert_goes_on("error", &w, last, "whole", &whole);
            remove_run("error");
            remove_run("whole");
        }
}

/* In a world, each call for memory or files fails once, of either rank: all ranks end, and what is
 * there is whole. With a failure of a step at the end, so that saving after it fails too. */
static void every_call_fails_in_a_world(void **state) {
    (void)state;
    enum { RUNS = SANITIZED ? 16 : 40 };
    static const wefti_fault_kind kinds[] = {WEFTI_FAULT_ALLOC, WEFTI_FAULT_IO};
    words w = image_words("faults", 2);
    add_words(&w, WITH("checkpoint.every=3", "checkpoint.keep=2"));
    write_images(63);
    for (int k = 0; k < 2; k++) {
        int64_t calls = 0, saved = 0;
        for (int i = -1; i < RUNS; i++) {
            static member members[2];
            rank_of_world ranks[2];
            memset(members, 0, sizeof members);
            weft_job *job = job_of(&w);
            members[0].job = members[1].job = job;
            /* most of the calls of the last failure come at the end */
            int64_t nth = i < 0          ? INT64_MAX
                          : i < RUNS / 2 ? calls * i / (RUNS / 2)
                                         : calls - RUNS + i;
            wefti_comm *comms[2];
            ASSERT_OK(wefti_comm_threads(2, -1, comms));
            for (int r = 0; r < 2; r++) {
                ranks[r] = (rank_of_world){.work = run_member, .context = &members[r]};
                ASSERT_OK(wefti_world_create(comms[r], r, 2, NULL, &ranks[r].world));
            }
            wefti_fault_arm(kinds[k], nth, false, EIO);
            for (int r = 0; r < 2; r++)
                assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
            for (int r = 0; r < 2; r++) pthread_join(ranks[r].thread, NULL);
            if (i < 0) calls = wefti_fault_count(kinds[k]);
            disarm_faults();
            for (int r = 0; r < 2; r++) {
                weft_world_leave(ranks[r].world);
                if (ranks[r].status >= 0 || !ranks[r].message[0])
                    fail_msg("call %lld, rank %d: status %d", (long long)nth, r, ranks[r].status);
            }
            weft_job_free(job);
            int64_t *steps, count;
            ASSERT_OK(wefti_checkpoint_list(in_root("faults"), &steps, &count));
            for (int64_t s = 0; s < count; s++)
                ASSERT_OK(wefti_checkpoint_verify(step_path("faults", steps[s])));
            saved += count && steps[count - 1] == members[0].record.last;
            wefti_free(steps);
            ASSERT_OK(wefti_remove_tree(in_root("faults")));
        }
        print_message("%d of %d runs have saved their last step\n", (int)saved, RUNS + 1);
        assert_in_range(saved, 10, RUNS);
    }
}

/* Without the key, the failure costs the steps since the last checkpoint. */
static void without_the_key_nothing_is_saved(void **state) {
    (void)state;
    words w = image_words("plain", 1);
    record r = {.first = 0};
    write_images(63);
    ASSERT_FAILS(WEFT_E_NUMERIC, "image 63", run_with(&w, WITH("checkpoint.on_error=false"), &r));
    assert_in_range(r.last, 1, 16);
    assert_int_equal(steps_in("plain", NULL), 0);
}

/* A loss that is not finite is found before the update: the state before it is saved. */
static void a_loss_without_a_number_keeps_the_step_before(void **state) {
    (void)state;
    static const char *const clips[] = {"train.clip=0", "train.clip=1e9"};
    for (int i = -1; i < LAYOUTS; i++)
        for (int k = 0; k < 2; k++) {
            words w = job_words(40);
            static member members[MOST_RANKS];
            rank_of_world ranks[MOST_RANKS];
            memset(members, 0, sizeof members);
            add_words(&w, WITH("train.optimizer.name=sgd", "train.optimizer.lr=1e6", clips[k],
                               "train.schedule.name=constant", "train.schedule.warmup=0",
                               "checkpoint.on_error=true", "data.validation=0", dir_word("loss")));
            if (i >= 0) add_devices(&w, &layouts[i]);
            const char *what = i >= 0 ? layouts[i].name : "one";
            record *first = &members[0].record;
            if (i < 0) {
                assert_int_equal(run_words(&w, first), WEFT_E_NUMERIC);
            } else {
                run_each(&w, NULL, layouts[i].count, run_member, members, ranks);
                for (int r = 0; r < layouts[i].count; r++)
                    assert_rank_fails(&ranks[r], r, WEFT_E_NUMERIC, "step ");
            }
            int64_t newest;
            if (steps_in("loss", &newest) != 1 || newest != first->last)
                fail_msg("%s, %s: step %d is not saved alone", what, clips[k], (int)first->last);
            assert_note(first, "comes|failure");
            record until = {.first = 0};
            add_word(&w, "train.steps=%d", (int)newest);
            ASSERT_OK(run_with(&w, WITH(dir_word("until")), &until));
            assert_same_checkpoint(step_path("loss", newest), step_path("until", newest));
            remove_run("loss");
            remove_run("until");
        }
}

/* A forward pass has changed the running means already: that is no state of a step. */
static void states_that_a_failed_step_has_changed(void **state) {
    (void)state;
    words w = tiny_resnet();
    record r = {.first = 0};
    add_words(&w,
              WITH(dir_word("states"), "train.optimizer.name=sgd", "train.optimizer.lr=1e6",
                   "train.optimizer.weight_decay=1", "train.clip=0", "train.schedule.name=constant",
                   "train.schedule.warmup=0", "checkpoint.on_error=true"));
    assert_int_equal(run_words(&w, &r), WEFT_E_NUMERIC);
    assert_note(&r, "checkpoint.on_error|states");
    assert_int_equal(steps_in("states", NULL), 0);
}

/* A rank that dies ends the world: nothing is saved, and all ranks end. */
static weft_world *that_ends;

static void end_at_step_3(void *context, const weft_train_step *s) {
    on_step(context, s);
    if (s->step == 3) weft_world_fail(that_ends, "a rank has gone");
}

static weft_status run_ending(void *context, weft_world *world) {
    member *m = context;
    weft_train_events events =
        WEFT_STRUCT(weft_train_events, .context = &m->record, .step = end_at_step_3,
                    .checkpoint = on_checkpoint, .note = on_note, .stop = &m->record.stop);
    if (weft_world_rank(world) == 0) that_ends = world;
    return weft_train_run_in(world, m->job, &events, &m->record.result);
}

/* accept 35(c) */
static void a_rank_that_fails_alone(void **state) {
    (void)state;
    for (int i = 0; i < LAYOUTS; i++) {
        words w = job_words(6);
        static member members[MOST_RANKS];
        rank_of_world ranks[MOST_RANKS];
        memset(members, 0, sizeof members);
        add_devices(&w, &layouts[i]);
        add_words(&w, WITH(dir_word("alone"), "checkpoint.every=2", "checkpoint.on_error=true"));
        weft_job *job = job_of(&w);
        for (int r = 0; r < layouts[i].count; r++) members[r].job = job;
        run_world(layouts[i].count, run_ending, members, sizeof *members, ranks);
        weft_job_free(job);
        for (int r = 0; r < layouts[i].count; r++) assert_true(ranks[r].status < 0);
        assert_note(&members[0].record, "checkpoint.on_error|step 3");
        record rest = {.first = 0}; /* all go on from a common step */
        ASSERT_OK(run_words(&w, &rest));
        assert_true(rest.first == 1 || rest.first == 3);
        remove_run("alone");
    }
}

/* ---- checkpoint.stop_file ---- */

static const char stop_text[] = "{\"GracefulExit\": 1}";

/* Writes the file of one rank when step 9 is reported. */
static void ask_at_step_9(void *context, const weft_train_step *s) {
    on_step(context, s);
    if (s->step == 9) (void)put_file("stop2", stop_text, sizeof stop_text - 1);
}

static weft_status run_asking(void *context, weft_world *world) {
    member *m = context;
    weft_train_events events =
        WEFT_STRUCT(weft_train_events, .context = &m->record, .step = ask_at_step_9,
                    .checkpoint = on_checkpoint, .note = on_note, .stop = &m->record.stop);
    return weft_train_run_in(world, m->job, &events, &m->record.result);
}

/* accept 35(a): the file of rank 2 alone asks at step 9: all ranks end after one step, with a
 * checkpoint and without a failure. The rest has the bits of an undisturbed run. */
static void a_file_of_one_rank_ends_all(void **state) {
    (void)state;
    for (int i = 1; i < LAYOUTS; i++) {
        const devices *d = &layouts[i];
        words w = job_words(20), whole_words;
        record whole = {.first = 0};
        static member members[MOST_RANKS];
        rank_of_world ranks[MOST_RANKS];
        memset(members, 0, sizeof members);
        add_devices(&w, d);
        whole_words = w;
        add_word(&whole_words, "%s", dir_word("whole"));
        ASSERT_OK(run_words(&whole_words, &whole));
        add_word(&w, "%s", dir_word("file"));
        char words_of[MOST_RANKS][300];
        const char *more[MOST_RANKS];
        for (int r = 0; r < d->count; r++) {
            char name[16];
            (void)snprintf(name, sizeof name, "stop%d", r);
            (void)snprintf(words_of[r], sizeof words_of[r], "checkpoint.stop_file=%s",
                           in_root(name));
            more[r] = words_of[r];
        }
        run_each(&w, more, d->count, run_asking, members, ranks);
        assert_all_ok(ranks, d->count, d->name);
        int64_t last = members[0].record.last;
        assert_in_range(last, 9, 10); /* rank 2 may look before or after the file is written */
        for (int r = 0; r < d->count; r++) {
            assert_int_equal(members[r].record.result.stop, WEFT_TRAIN_STOPPED_BY_FILE);
            assert_int_equal(members[r].record.result.steps, last);
        }
        ASSERT_OK(wefti_remove_tree(in_root("stop2")));
        assert_goes_on("file", &w, last, "whole", &whole);
        remove_run("file");
        remove_run("whole");
    }
}

static void only_the_member_asks(void **state) {
    (void)state;
    static const struct {
        const char *text, *note; /* note: what is said of the file; NULL: nothing */
        bool asks;
    } cases[] = {
        {stop_text, NULL, true},
        {"{\"other\": [1, {}], \"GracefulExit\": true}\n", NULL, true},
        {"{\"GracefulExit\": 0}", NULL, false},
        {"{\"GracefulExit\": false}", NULL, false},
        {"{\"GracefulExit\": 2}", NULL, false},
        {"{\"gracefulexit\": 1}", NULL, false},
        {"{}", NULL, false},
        {"", "checkpoint.stop_file", false},
        {"{\"GracefulExit\": ", "checkpoint.stop_file", false}, /* half of it */
        {"[1]", "checkpoint.stop_file", false},
        {"{\"GracefulExit\": \"1\"}", "checkpoint.stop_file|GracefulExit", false},
    };
    words w = tiny_gpt2();
    add_words(&w, WITH("train.steps=3"));
    add_word(&w, "checkpoint.stop_file=%s", in_root("asks"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        record r = {.first = 0};
        (void)put_file("asks", cases[i].text, strlen(cases[i].text));
        ASSERT_OK(run_with(&w, WITH(dir_word("asked")), &r));
        assert_int_equal(r.result.stop, cases[i].asks ? WEFT_TRAIN_STOPPED_BY_FILE : 0);
        assert_int_equal(r.last, cases[i].asks ? 0 : 3);
        if (cases[i].note) assert_note(&r, cases[i].note);
        assert_int_equal(r.notes, cases[i].note != NULL); /* once, not at every step */
        ASSERT_OK(wefti_remove_tree(in_root("asked")));
    }
}

/* A signal has an exit code of its own, so it goes before the file. */
static void a_signal_goes_before_the_file(void **state) {
    (void)state;
    words w = job_words(5);
    static member members[2];
    rank_of_world ranks[2];
    memset(members, 0, sizeof members);
    (void)put_file("asks", stop_text, sizeof stop_text - 1);
    add_devices(&w, &layouts[0]);
    add_word(&w, "%s", dir_word("both"));
    add_word(&w, "checkpoint.stop_file=%s", in_root("asks"));
    members[1].record.stop = 15;
    run_each(&w, NULL, 2, run_member, members, ranks);
    for (int r = 0; r < 2; r++) {
        assert_rank_fails(&ranks[r], r, WEFT_E_STOPPED, "step 0");
        assert_int_equal(members[r].record.result.stop, 15);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_by_the_clock),
        cmocka_unit_test(all_ranks_save_the_same_step),
        cmocka_unit_test(ranks_with_other_rules_are_refused),
        cmocka_unit_test(the_first_of_a_minute_stays),
        cmocka_unit_test(bad_data_lose_no_step),
        cmocka_unit_test(every_call_fails_in_a_world),
        cmocka_unit_test(without_the_key_nothing_is_saved),
        cmocka_unit_test(a_loss_without_a_number_keeps_the_step_before),
        cmocka_unit_test(states_that_a_failed_step_has_changed),
        cmocka_unit_test(a_rank_that_fails_alone),
        cmocka_unit_test(a_file_of_one_rank_ends_all),
        cmocka_unit_test(only_the_member_asks),
        cmocka_unit_test(a_signal_goes_before_the_file),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
