/* `weft`: finds the verb and hands it its words. */
#include "cli.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "launch/launch.h"
#include "weft/info.h"
#include "weft/launch.h"

#define VERB_ROW(name) &cli_##name,
static const cli_verb *const verbs[] = {CLI_VERBS(VERB_ROW) NULL};
#undef VERB_ROW

static void show_help(FILE *stream) {
    cli_say_bold(stream, "weft");
    cli_say(stream, " %s: distributed training\n\nusage: weft VERB ...\n\n", weft_version());
    for (const cli_verb *const *v = verbs; *v; v++) {
        cli_say(stream, "  %-12s ", (*v)->name);
        cli_say_wrapped(stream, 15, 15, (*v)->summary);
    }
    cli_say(stream, "\n`weft help VERB` shows a verb's options and an example.\n");
}

/* A caller that closes a standard stream (`weft ... >&-`, a daemon) wants no output there. Without
 * this, the first file or connection opened would take its number. */
static void open_standard_streams(void) {
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO) close(fd);
}

/* Output that did not reach its file is a failure, even when all else went well. */
static int written(int code) {
    code = cli_errors_end(code);
    if (!(fflush(stdout) || ferror(stdout)) || code != CLI_DONE) return code;
    return cli_complain("cannot write the output");
}

/* NULL after a complaint that names the nearest verb. */
static const cli_verb *find_verb(const char *word) {
    const char *names[sizeof verbs / sizeof *verbs];
    int count = 0;
    for (const cli_verb *const *v = verbs; *v; v++) {
        if (!strcmp(word, (*v)->name)) return *v;
        names[count++] = (*v)->name;
    }
    names[count] = NULL;
    const char *near = weft_nearest(word, names);
    (void)cli_usage_of_none("unknown verb '%.100s'%s%s%s", word, near ? "; did you mean '" : "",
                            near ? near : "", near ? "'?" : "");
    show_help(stderr);
    return NULL;
}

/* `weft help VERB`: as `weft VERB --help`. */
static int help_of(int count, char **words) {
    char help[] = "--help", *asked[] = {help};
    if (count > 1)
        return cli_usage_of_none("help shows one verb; '%.100s' is one word too many", words[1]);
    const cli_verb *verb = find_verb(words[0]);
    return verb ? written(verb->run(verb, 1, asked)) : CLI_USAGE;
}

static int run_words(int argc, char **argv) {
    if (argc < 2) {
        show_help(stderr);
        return CLI_USAGE;
    }
    const char *word = argv[1];
    if (!strcmp(word, "--help") || !strcmp(word, "-h") || (!strcmp(word, "help") && argc == 2)) {
        show_help(stdout);
        return written(CLI_DONE);
    }
    if (!strcmp(word, "help")) return help_of(argc - 2, argv + 2);
    if (!strcmp(word, "--version")) {
        cli_say(stdout, "weft %s\n", weft_version());
        return written(CLI_DONE);
    }
    const cli_verb *verb = find_verb(word);
    if (!verb) {
        for (int i = 2; i < argc; i++)
            if (!strcmp(argv[i], "--json")) cli_errors_as_json(true);
        return written(CLI_USAGE);
    }
    /* In jobs with a scheduler process, one of the equally started processes takes that role. */
    bool serves = verb == &cli_train && weft_launch_is_scheduler();
    return written(serves ? launch_serve() : verb->run(verb, argc - 2, argv + 2));
}

/* --- the thread that runs the command --- */

enum { MAIN_STACK = 8 << 20, SMALL_STACK = 1 << 20 };

typedef struct command {
    int argc, code;
    char **argv;
} command;

static void *run_command(void *context) {
    command *c = context;
    c->code = run_words(c->argc, c->argv);
    return NULL;
}

/* Libraries have large stack frames, and `ulimit -s` bounds the first thread's stack. If that is
 * small, another thread runs the command; false: no thread could be started. */
static bool run_with_stack(command *c) {
    pthread_t thread;
    pthread_attr_t how;
    if (pthread_attr_init(&how)) return false;
    bool runs = pthread_attr_setstacksize(&how, MAIN_STACK) == 0 &&
                pthread_create(&thread, &how, run_command, c) == 0;
    pthread_attr_destroy(&how);
    if (runs) pthread_join(thread, NULL);
    return runs;
}

int main(int argc, char **argv) {
    command c = {.argc = argc, .argv = argv};
    struct rlimit stack;
    open_standard_streams();
    cli_hear_signals_as_first_process();
    (void)signal(
        SIGXFSZ,
        SIG_IGN); /* `ulimit -f` then acts like a full disk: the write fails with a message */
    bool is_small = getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur < SMALL_STACK;
    if (!is_small || !run_with_stack(&c)) run_command(&c);
    return c.code;
}
