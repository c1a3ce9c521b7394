/* Training runs over a world: the bits, files and ends of one process with as many devices. */
#include "run_members.h"
#include "sanitized.h"

#include <signal.h>

#include "weft/collective.h"

/* All ranks except the first print nothing, and have the same results. */
static void assert_followers(const member *members, int count, const char *what) {
    for (int r = 1; r < count; r++) {
        const record *x = &members[r].record;
        assert_int_equal(x->starts + x->last + x->checkpoints + x->validated + x->notes, 0);
        assert_int_equal(x->result.steps, members[0].record.result.steps);
        if (memcmp(&x->result.final_loss, &members[0].record.result.final_loss, sizeof(double)))
            fail_msg("%s: rank %d knows another loss", what, r);
    }
}

/* Every byte of every file but the manifest's own. */
static void assert_same_files(const char *a, const char *b) {
    static const char *const names[] = {"model.safetensors", "config.json",
                                        "optimizer-00001-of-00001.safetensors"};
    for (int i = 0; i < 3; i++) {
        char path[2][800], *text[2];
        int64_t bytes[2];
        (void)snprintf(path[0], sizeof path[0], "%s/%s", a, names[i]);
        (void)snprintf(path[1], sizeof path[1], "%s/%s", b, names[i]);
        for (int k = 0; k < 2; k++)
            ASSERT_OK(wefti_file_read(path[k], 1 << 24, &text[k], &bytes[k]));
        assert_int_equal(bytes[0], bytes[1]);
        assert_memory_equal(text[0], text[1], (size_t)bytes[0]);
        for (int k = 0; k < 2; k++) wefti_free(text[k]);
    }
}

/* ---- tests ---- */

/* Written at every step, while the next one runs. */
static void processes_are_as_one(void **state) {
    (void)state;
    for (int i = 0; i < LAYOUTS; i++) {
        const devices *d = &layouts[i];
        words w = job_words(6), one_words, many_words;
        record one = {.first = 0};
        member members[MOST_RANKS] = {{.job = NULL}};
        rank_of_world ranks[MOST_RANKS];
        add_words(&w, WITH("train.eval_every=3", "checkpoint.every=1", "checkpoint.keep=10"));
        if (i % 2 == 1) add_word(&w, "train.clip=0"); /* updates in the midst of backward passes */
        add_devices(&w, d);
        one_words = many_words = w;
        add_word(&one_words, "%s", dir_word("one"));
        add_word(&many_words, "%s", dir_word("many"));
        ASSERT_OK(run_words(&one_words, &one));
        run_all(&many_words, NULL, d->count, members, ranks);
        assert_all_ok(ranks, d->count, d->name);
        assert_same_record(&one, &members[0].record, d->name);
        assert_followers(members, d->count, d->name);
        for (int64_t s = 1; s <= 6; s++)
            assert_same_files(step_path("one", s), step_path("many", s));
        ASSERT_OK(wefti_remove_tree(in_root("one")));
        ASSERT_OK(wefti_remove_tree(in_root("many")));
    }
}

/* Masked tokens: whole batches in one process, the own rows of each microbatch in several. */
static void each_rank_prepares_its_rows(void **state) {
    (void)state;
    static const struct {
        const char *words[3];
        int ranks;
        int64_t prepared[4]; /* of 4 steps of 8 samples */
        int shares; /* ranks that share the rows of validation's batches; others need all rows */
    } cases[] = {
        {{"parallel.devices=4"}, 4, {8, 8, 8, 8}, 4},
        {{"parallel.devices=2", "train.accumulate=2"}, 2, {16, 16}, 2},
        {{"parallel.devices=2", "parallel.pipeline.stages=2", "parallel.pipeline.microbatches=2"},
         2,
         {32, 32},
         1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int masked = 0; masked < 2; masked++) {
            words w = job_words(4);
            record one = {.first = 0};
            member members[MOST_RANKS] = {{.job = NULL}};
            rank_of_world ranks[MOST_RANKS];
            add_words(&w, WITH("train.eval_every=2"));
            if (masked) add_words(&w, WITH("model.family=bert"));
            for (int k = 0; k < 3 && cases[i].words[k]; k++) add_word(&w, "%s", cases[i].words[k]);
            ASSERT_OK(run_words(&w, &one));
            assert_int_equal(one.result.samples_prepared, 32);
            run_all(&w, NULL, cases[i].ranks, members, ranks);
            assert_all_ok(ranks, cases[i].ranks, cases[i].words[0]);
            assert_same_record(&one, &members[0].record, cases[i].words[0]);
            for (int r = 0; r < cases[i].ranks; r++)
                assert_int_equal(members[r].record.result.samples_prepared, cases[i].prepared[r]);
            int64_t all = one.result.validation_prepared, sum = 0;
            assert_true(all > 8);
            for (int r = 0; r < cases[i].ranks; r++) {
                int64_t own = members[r].record.result.validation_prepared;
                assert_true(own > 0 && (cases[i].shares == 1 ? own == all : own < all));
                sum += own;
            }
            assert_int_equal(sum * cases[i].shares, all * cases[i].ranks);
        }
}

/* Images, with states, and accuracy from logits of all ranks. */
static void networks_with_states_too(void **state) {
    (void)state;
    words w = tiny_resnet();
    add_words(&w, WITH("train.steps=4", "train.eval_every=2", "parallel.devices=2"));
    record one = {.first = 0};
    member members[2] = {{.job = NULL}};
    rank_of_world ranks[2];
    ASSERT_OK(run_words(&w, &one));
    run_all(&w, NULL, 2, members, ranks);
    assert_all_ok(ranks, 2, "resnet");
    assert_same_record(&one, &members[0].record, "resnet");
    assert_memory_equal(&one.result.accuracy, &members[0].record.result.accuracy, sizeof(double));
}

/* accept 33(d), 33(e): stopped after four steps, and continued by other numbers of processes. */
static void a_run_goes_on_with_other_processes(void **state) {
    (void)state;
    words base = job_words(8), four = base;
    add_devices(&four, &layouts[1]);
    for (int i = 0; i < LAYOUTS; i++) {
        words rest_words = base, dirs;
        record one_begin = {.stop_after = 4}, one_rest = {.first = 0};
        member begin[MOST_RANKS] = {{.job = NULL}}, rest[MOST_RANKS] = {{.job = NULL}};
        rank_of_world ranks[MOST_RANKS];
        add_devices(&rest_words, &layouts[i]);
        assert_int_equal(run_with(&four, WITH(dir_word("one")), &one_begin), WEFT_E_STOPPED);
        ASSERT_OK(run_with(&rest_words, WITH(dir_word("one")), &one_rest));
        dirs = four;
        add_word(&dirs, "%s", dir_word("many"));
        begin[0].record.stop_after = 4;
        run_all(&dirs, NULL, 4, begin, ranks);
        for (int r = 0; r < 4; r++) {
            assert_rank_fails(&ranks[r], r, WEFT_E_STOPPED, "step 4");
            assert_int_equal(begin[r].record.result.stop, 1);
        }
        assert_same_files(step_path("one", 4), step_path("many", 4));
        dirs = rest_words;
        add_word(&dirs, "%s", dir_word("many"));
        run_all(&dirs, NULL, layouts[i].count, rest, ranks);
        assert_all_ok(ranks, layouts[i].count, layouts[i].name);
        assert_int_equal(rest[0].record.first, 5);
        assert_same_record(&one_rest, &rest[0].record, layouts[i].name);
        assert_same_files(step_path("one", 8), step_path("many", 8));
        ASSERT_OK(wefti_remove_tree(in_root("one")));
        ASSERT_OK(wefti_remove_tree(in_root("many")));
    }
}

static void any_rank_may_ask_to_stop(void **state) {
    (void)state;
    words w = job_words(1000);
    add_word(&w, "%s", dir_word("asked"));
    add_devices(&w, &layouts[2]);
    member members[4] = {{.job = NULL}};
    rank_of_world ranks[4];
    members[2].record.stop = 15;
    run_all(&w, NULL, 4, members, ranks);
    for (int r = 0; r < 4; r++) {
        assert_rank_fails(&ranks[r], r, WEFT_E_STOPPED, "step 0");
        assert_int_equal(members[r].record.result.stop, 15);
    }
    assert_int_equal(steps_in("asked", NULL), 0); /* as no step was done */
    ASSERT_OK(wefti_remove_tree(in_root("asked")));
}

/* Delivers a signal to one rank in the middle of a run. */
static member *signalled;
static pthread_t signalled_thread;

static void ask_to_stop(int number) {
    signalled->record.stop = number;
}

static void signal_at_step_4(void *context, const weft_train_step *s) {
    on_step(context, s);
    if (s->step == 4) (void)pthread_kill(signalled_thread, SIGUSR1);
}

static weft_status run_signalled(void *context, weft_world *world) {
    member *m = context;
    weft_train_events events =
        WEFT_STRUCT(weft_train_events, .context = &m->record, .step = signal_at_step_4,
                    .checkpoint = on_checkpoint, .stop = &m->record.stop);
    if (m == signalled) signalled_thread = pthread_self();
    TRY(weft_barrier(world, NULL)); /* the thread is known to rank 0 */
    return weft_train_run_in(world, m->job, &events, &m->record.result);
}

/* One rank receives a stop request. All ranks stop after the same step, wherever they were, with a
 * checkpoint of that step. A run that continues from there gives the bits of an uninterrupted
 * run. */
static void one_rank_is_asked_in_the_midst(void **state) {
    (void)state;
    enum { LAST = 40, ASKED = 2 };
    if (SANITIZED_THREAD) SKIP("the thread sanitizer brings signals late");
    for (int i = 1; i < LAYOUTS; i++) {
        const devices *d = &layouts[i];
        words w = job_words(LAST), asked_words, whole_words;
        add_devices(&w, d);
        asked_words = whole_words = w;
        add_word(&asked_words, "%s", dir_word("asked"));
        add_word(&whole_words, "%s", dir_word("whole"));
        static member members[MOST_RANKS], whole[MOST_RANKS], rest[MOST_RANKS];
        rank_of_world ranks[MOST_RANKS];
        memset(members, 0, sizeof members);
        memset(whole, 0, sizeof whole);
        memset(rest, 0, sizeof rest);
        run_all(&whole_words, NULL, d->count, whole, ranks);
        assert_all_ok(ranks, d->count, d->name);

        struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = SA_RESTART}, before;
        assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
        signalled = &members[ASKED];
        weft_job *job = job_of(&asked_words);
        for (int r = 0; r < d->count; r++) members[r].job = job;
        run_world(d->count, run_signalled, members, sizeof *members, ranks);
        weft_job_free(job);
        assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
        const record *first = &members[0].record;
        char stopped[64];
        int64_t newest;
        assert_in_range(first->last, 4, LAST - 1);
        (void)snprintf(stopped, sizeof stopped, "step %d", (int)first->last);
        for (int r = 0; r < d->count; r++) {
            assert_rank_fails(&ranks[r], r, WEFT_E_STOPPED, stopped);
            assert_int_equal(members[r].record.result.stop, SIGUSR1);
        }
        assert_int_equal(steps_in("asked", &newest), 1);
        assert_int_equal(newest, first->last);

        run_all(&asked_words, NULL, d->count, rest, ranks);
        assert_all_ok(ranks, d->count, d->name);
        assert_int_equal(rest[0].record.first, first->last + 1);
        for (int64_t s = 1; s <= LAST; s++) {
            const record *is = s <= first->last ? first : &rest[0].record;
            assert_memory_equal(&is->losses[s], &whole[0].record.losses[s], sizeof(double));
        }
        assert_same_files(step_path("asked", LAST), step_path("whole", LAST));
        ASSERT_OK(wefti_remove_tree(in_root("asked")));
        ASSERT_OK(wefti_remove_tree(in_root("whole")));
    }
}

/* Rank 1 does not see the directory of the other ranks. Files are the same, and the run goes on
 * from them. */
static void a_rank_that_does_not_see_the_directory(void **state) {
    (void)state;
    for (int i = 0; i < LAYOUTS; i++) {
        const devices *d = &layouts[i];
        words w = job_words(4), whole_words, many_words, other_words;
        record one = {.first = 0};
        member members[MOST_RANKS] = {{.job = NULL}}, rest[MOST_RANKS] = {{.job = NULL}};
        rank_of_world ranks[MOST_RANKS];
        add_devices(&w, d);
        add_words(&w, WITH("checkpoint.every=2", "checkpoint.keep=10"));
        whole_words = many_words = other_words = w;
        add_word(&whole_words, "%s", dir_word("whole"));
        add_word(&many_words, "%s", dir_word("many"));
        add_word(&other_words, "%s", dir_word("other"));
        ASSERT_OK(run_words(&whole_words, &one));
        run_all(&many_words, &other_words, d->count, members, ranks);
        assert_all_ok(ranks, d->count, d->name);
        for (int64_t s = 2; s <= 4; s += 2)
            assert_same_files(step_path("whole", s), step_path("many", s));
        assert_false(wefti_exists(in_root("other")));
        ASSERT_OK(wefti_remove_tree(step_path("many", 4)));
        run_all(&many_words, &other_words, d->count, rest, ranks);
        assert_all_ok(ranks, d->count, d->name);
        assert_int_equal(rest[0].record.first, 3);
        assert_same_files(step_path("whole", 4), step_path("many", 4));
        ASSERT_OK(wefti_remove_tree(in_root("whole")));
        ASSERT_OK(wefti_remove_tree(in_root("many")));
    }
}

/* One byte in the midst of a file of tensors is wrong. */
static void damage(const char *path) {
    char *text;
    int64_t bytes;
    ASSERT_OK(wefti_file_read(path, 1 << 24, &text, &bytes));
    text[bytes * 2 / 3] ^= 4;
    ASSERT_OK(wefti_file_write(path, text, (size_t)bytes));
    wefti_free(text);
}

/* Every rank reads its own pieces. Together they find damage, and go on from the step before. */
static void damage_is_found_together(void **state) {
    (void)state;
    for (int i = 0; i < 2 * LAYOUTS; i++) {
        const devices *d = &layouts[i / 2];
        words w = job_words(4), other;
        member members[MOST_RANKS] = {{.job = NULL}}, rest[MOST_RANKS] = {{.job = NULL}};
        rank_of_world ranks[MOST_RANKS];
        char path[800];
        add_devices(&w, d);
        add_words(&w, WITH(dir_word("many"), "checkpoint.every=2", "checkpoint.keep=10"));
        other = w;
        add_word(&other, "%s", dir_word("other"));
        run_all(&w, NULL, d->count, members, ranks);
        assert_all_ok(ranks, d->count, d->name);
        (void)snprintf(path, sizeof path, "%s/%s", step_path("many", 4),
                       i % 2 ? "model.safetensors" : "optimizer-00001-of-00001.safetensors");
        damage(path);
        run_all(&w, i % 2 ? &other : NULL, d->count, rest, ranks);
        assert_all_ok(ranks, d->count, d->name);
        assert_int_equal(rest[0].record.first, 3);
        assert_int_equal(rest[0].record.notes, 1);
        if (memcmp(&rest[0].record.losses[4], &members[0].record.losses[4], sizeof(double)))
            fail_msg("%s: another loss after damage", d->name);
        /* no good step */
        damage(path);
        (void)snprintf(path, sizeof path, "%s/model.safetensors", step_path("many", 2));
        damage(path);
        ASSERT_OK(wefti_remove_tree(step_path("many", 4)));
        run_all(&w, NULL, d->count, rest, ranks);
        for (int r = 0; r < d->count; r++)
            assert_rank_fails(&ranks[r], r, WEFT_E_CORRUPT, "checkpoint");
        ASSERT_OK(wefti_remove_tree(in_root("many")));
    }
}

static void weights_come_from_rank_0(void **state) {
    (void)state;
    words source = job_words(2), w = {.count = 0};
    record made = {.first = 0}, one = {.first = 0};
    member members[4] = {{.job = NULL}};
    rank_of_world ranks[4];
    ASSERT_OK(run_with(&source, WITH(dir_word("source")), &made));
    add_word(&w, "model.from=%s", in_root("source"));
    add_word(&w, "data.path=%s", text_file());
    add_words(&w, WITH("train.steps=3", "train.batch=8", "model.context=8", "device.threads=2"));
    add_devices(&w, &layouts[2]);
    ASSERT_OK(run_words(&w, &one));
    run_all(&w, NULL, 4, members, ranks);
    assert_all_ok(ranks, 4, "model.from");
    assert_same_record(&one, &members[0].record, "model.from");
    ASSERT_OK(wefti_remove_tree(in_root("source")));
}

/* ---- failures ---- */

static void a_loss_that_is_not_finite_ends_all(void **state) {
    (void)state;
    for (int i = 0; i < LAYOUTS; i++) {
        words w = job_words(40);
        add_words(&w, WITH("train.optimizer.name=sgd", "train.optimizer.lr=1e6", "train.clip=0",
                           "train.schedule.name=constant", "train.schedule.warmup=0"));
        add_devices(&w, &layouts[i]);
        member members[MOST_RANKS] = {{.job = NULL}};
        rank_of_world ranks[MOST_RANKS];
        run_all(&w, NULL, layouts[i].count, members, ranks);
        for (int r = 0; r < layouts[i].count; r++) {
            assert_rank_fails(&ranks[r], r, WEFT_E_NUMERIC, "step ");
            assert_rank_fails(&ranks[r], r, WEFT_E_NUMERIC, "rank ");
        }
    }
}

static void a_rank_without_data_is_named(void **state) {
    (void)state;
    words w = job_words(3), other;
    add_devices(&w, &layouts[2]);
    other = w;
    add_word(&other, "data.path=%s", in_root("nothing"));
    member members[4] = {{.job = NULL}};
    rank_of_world ranks[4];
    run_all(&w, &other, 4, members, ranks);
    for (int r = 0; r < 4; r++) {
        if (r != 1) assert_rank_fails(&ranks[r], r, WEFT_E_PEER, "rank 1: ");
        if (ranks[r].status >= 0 || !has_facts(ranks[r].message, "nothing"))
            fail_msg("rank %d: \"%s\" does not say what is missing", r, ranks[r].message);
    }
}

static void ranks_with_other_jobs_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *word, *part;
    } cases[] = {
        {"train.optimizer.eps=1e-5", "train.optimizer.eps|1e-05|1e-08"},
        {"train.optimizer.lr=0.1", "train.optimizer.lr|0.1"},
        {"train.schedule.name=linear", "train.schedule.name|linear|cosine"},
        {"train.schedule.final=0.5", "train.schedule.final|0.5|0.1"},
        {"train.steps=4", "train.steps|4|3"},
        {"train.eval_every=1", "train.eval_every|1"},
        {"train.eval_batches=1", "train.eval_batches|1"},
        {"train.check_replicas=1", "train.check_replicas|1|0"},
        {"checkpoint.every=1", "checkpoint.every|1|0"},
        {"checkpoint.dir=elsewhere", "checkpoint.dir|set"},
        {"data.validation=0.25", "training|samples"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        words w = job_words(3), other;
        add_devices(&w, &layouts[2]);
        other = w;
        add_word(&other, "%s", cases[i].word);
        member members[4] = {{.job = NULL}};
        rank_of_world ranks[4];
        run_all(&w, &other, 4, members, ranks);
        for (int r = 0; r < 4; r++) {
            assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, "rank 1|rank 0");
            assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, cases[i].part);
        }
    }
}

/* Texts, labels, validation data, shards and tokenizers of equal size and other content: refused
 * before the first step, by all ranks, with the rank, the files and the kind of difference. */
static void ranks_with_other_data_are_refused(void **state) {
    (void)state;
    static char text[4096];
    char *copy;
    int64_t bytes;
    ASSERT_OK(wefti_file_read(text_file(), sizeof text, &copy, &bytes));
    memcpy(text, copy, (size_t)bytes);
    wefti_free(copy);
    text[100] ^= 1;
    (void)put_file("other_content", text, (size_t)bytes);
    (void)put_file("shorter", text, (size_t)bytes - 1);
    text[100] ^= 1;
    (void)put_file("other_name", text, (size_t)bytes); /* a copy is as good */
    const struct {
        const char *key, *mine, *theirs, *facts; /* facts NULL: accepted */
    } cases[] = {
        {"data.path", "text", "other_content",
         "rank 1|rank 0|training data|other_content|other content|text"},
        {"data.path", "text", "shorter", "training data|shorter|text|rank 0"},
        {"data.path", "text", "other_name", NULL},
        {"data.validation", "text", "other_content", "rank 1|rank 0|validation data|other_content"},
        {"data.validation", "text", "other_name", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        words w = job_words(2), other;
        add_words(&w, WITH("parallel.pipeline.stages=2", "parallel.pipeline.microbatches=2"));
        other = w;
        add_word(&w, "%s=%s", cases[i].key, in_root(cases[i].mine));
        add_word(&other, "%s=%s", cases[i].key, in_root(cases[i].theirs));
        member members[2] = {{.job = NULL}};
        rank_of_world ranks[2];
        run_all(&w, &other, 2, members, ranks);
        if (!cases[i].facts) assert_all_ok(ranks, 2, cases[i].theirs);
        for (int r = 0; r < 2 && cases[i].facts; r++)
            assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, cases[i].facts);
    }
}

/* The labels of images, and a tokenizer of as many tokens with other numbers. */
static void ranks_with_other_labels_or_tokens_are_refused(void **state) {
    (void)state;
    words w = tiny_mlp(), other;
    member members[2] = {{.job = NULL}};
    rank_of_world ranks[2];
    char *labels;
    int64_t bytes;
    ASSERT_OK(wefti_file_read(in_root("labels-idx1-ubyte"), 4096, &labels, &bytes));
    labels[bytes - 1] = (char)(labels[bytes - 1] ^ 1);
    add_words(&w, WITH("parallel.devices=2", "train.steps=2"));
    other = w;
    add_word(&other, "data.labels=%s", put_file("labels", labels, (size_t)bytes));
    wefti_free(labels);
    run_all(&w, &other, 2, members, ranks);
    for (int r = 0; r < 2; r++)
        assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH,
                          "training labels|rank 1|other content|labels-idx1-ubyte");

    words text = job_words(2), tokens;
    char letters[2000];
    for (size_t i = 0; i < sizeof letters; i++) letters[i] = "abbaab"[i * i % 6];
    add_words(&text, WITH("parallel.devices=2", "data.validation=0"));
    add_word(&text, "data.path=%s", put_file("letters", letters, sizeof letters));
    tokens = text;
    add_word(&text, "data.tokenizer=%s", put_tokenizer("abc.json", "abc"));
    add_word(&tokens, "data.tokenizer=%s", put_tokenizer("abd.json", "acb"));
    run_all(&text, &tokens, 2, members, ranks);
    for (int r = 0; r < 2; r++)
        assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, "tokenizer|rank 1|3 tokens");
}

/* The failure is known when rank 0 has begun to write and waits for tensors. */
static weft_world *that_fails;

static void fail_at_step_2(void *context, const weft_train_step *s) {
    on_step(context, s);
    if (s->step == 2) weft_world_fail(that_fails, "a rank has gone");
}

static weft_status run_failing_member(void *context, weft_world *world) {
    member *m = context;
    weft_train_events events =
        WEFT_STRUCT(weft_train_events, .context = &m->record, .step = fail_at_step_2);
    if (weft_world_rank(world) == 0) that_fails = world;
    return weft_train_run_in(world, m->job, &events, &m->record.result);
}

static void a_checkpoint_that_does_not_come_ends_too(void **state) {
    (void)state;
    words w = job_words(4);
    add_devices(&w, &layouts[0]);
    add_words(&w, WITH(dir_word("begun"), "checkpoint.every=2"));
    weft_job *job = job_of(&w);
    member members[2] = {{.job = job}, {.job = job}};
    rank_of_world ranks[2];
    run_world(2, run_failing_member, members, sizeof *members, ranks);
    weft_job_free(job);
    for (int r = 0; r < 2; r++) assert_rank_fails(&ranks[r], r, WEFT_E_PEER, "rank|gone");
    assert_int_equal(steps_in("begun", NULL), 0);
    ASSERT_OK(wefti_remove_tree(in_root("begun")));
}

/* The model must communicate by explicit ops but does not, and the ranks have different data. */
static void replicas_that_drift_apart_are_found(void **state) {
    (void)state;
    static char text[4096];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + i * i % 23);
    words w = job_words(5), other;
    add_words(&w, WITH("parallel.devices=2", "parallel.mode=manual", "train.check_replicas=2",
                       "train.clip=0"));
    other = w;
    member members[2] = {{.job = NULL}};
    rank_of_world ranks[2];
    run_all(&w, NULL, 2, members, ranks);
    assert_all_ok(ranks, 2, "equal data");
    add_word(&other, "data.path=%s", put_file("other_text", text, sizeof text));
    run_all(&w, &other, 2, members, ranks);
    for (int r = 0; r < 2; r++) assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, "step 2");
}

static void an_occupied_directory_is_refused_everywhere(void **state) {
    (void)state;
    words w = job_words(2);
    record before = {.first = 0};
    member members[4] = {{.job = NULL}};
    rank_of_world ranks[4];
    ASSERT_OK(run_with(&w, WITH(dir_word("occupied")), &before));
    add_words(&w, WITH(dir_word("occupied"), "checkpoint.resume=false"));
    add_devices(&w, &layouts[2]);
    run_all(&w, NULL, 4, members, ranks);
    for (int r = 0; r < 4; r++)
        assert_rank_fails(&ranks[r], r, r ? WEFT_E_PEER : WEFT_E_ARG, "already|checkpoints");
    ASSERT_OK(wefti_remove_tree(in_root("occupied")));
}

/* A failure that all ranks know ends one run. In the next run one rank fails alone. A slow rank may
 * hear of that while it is still in the first run. */
static weft_status run_twice(void *context, weft_world *world) {
    member *m = context, refused = {.job = m->another};
    weft_status status = run_member(&refused, world);
    return status == WEFT_E_MISMATCH ? run_member(m, world) : status;
}

static void a_second_run_in_a_world_ends_too(void **state) {
    (void)state;
    words w = job_words(2), other;
    record before = {.first = 0};
    member members[4] = {{.job = NULL}};
    rank_of_world ranks[4];
    ASSERT_OK(run_with(&w, WITH(dir_word("twice")), &before));
    add_devices(&w, &layouts[2]);
    other = w;
    add_word(&other, "train.optimizer.eps=1e-5");
    weft_job *first[2] = {job_of(&w), job_of(&other)};
    add_words(&w, WITH(dir_word("twice"), "checkpoint.resume=false"));
    weft_job *second = job_of(&w);
    for (int r = 0; r < 4; r++) members[r] = (member){.job = second, .another = first[r == 1]};
    run_world(4, run_twice, members, sizeof *members, ranks);
    for (int r = 0; r < 4; r++)
        assert_rank_fails(&ranks[r], r, r ? WEFT_E_PEER : WEFT_E_ARG, "already|checkpoints");
    weft_job_free(first[0]);
    weft_job_free(first[1]);
    weft_job_free(second);
    ASSERT_OK(wefti_remove_tree(in_root("twice")));
}

static void jobs_for_other_numbers_are_refused(void **state) {
    (void)state;
    words w = job_words(2);
    add_devices(&w, &layouts[0]);
    member members[4] = {{.job = NULL}};
    rank_of_world ranks[4];
    run_all(&w, NULL, 4, members, ranks);
    for (int r = 0; r < 4; r++) assert_rank_fails(&ranks[r], r, WEFT_E_ARG, "2 devices|4");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_are_as_one),
        cmocka_unit_test(each_rank_prepares_its_rows),
        cmocka_unit_test(networks_with_states_too),
        cmocka_unit_test(a_run_goes_on_with_other_processes),
        cmocka_unit_test(any_rank_may_ask_to_stop),
        cmocka_unit_test(one_rank_is_asked_in_the_midst),
        cmocka_unit_test(a_rank_that_does_not_see_the_directory),
        cmocka_unit_test(damage_is_found_together),
        cmocka_unit_test(weights_come_from_rank_0),
        cmocka_unit_test(a_loss_that_is_not_finite_ends_all),
        cmocka_unit_test(a_rank_without_data_is_named),
        cmocka_unit_test(ranks_with_other_jobs_are_refused),
        cmocka_unit_test(ranks_with_other_data_are_refused),
        cmocka_unit_test(ranks_with_other_labels_or_tokens_are_refused),
        cmocka_unit_test(a_checkpoint_that_does_not_come_ends_too),
        cmocka_unit_test(replicas_that_drift_apart_are_found),
        cmocka_unit_test(an_occupied_directory_is_refused_everywhere),
        cmocka_unit_test(a_second_run_in_a_world_ends_too),
        cmocka_unit_test(jobs_for_other_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
