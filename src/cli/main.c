/* `weft`: finds the verb and hands it its words. */
#include "cli.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launch_serve.h"
#include "weft/info.h"
#include "weft/launch.h"

#define VERB_ROW(name) &cli_##name,
static const cli_verb *const verbs[] = {CLI_VERBS(VERB_ROW) NULL};
#undef VERB_ROW

static void show_help(FILE *stream) {
    fprintf(stream, "%sweft%s %s: distributed training\n\nusage: weft VERB ...\n\n",
            cli_bold(stream), cli_plain(stream), weft_version());
    for (const cli_verb *const *v = verbs; *v; v++)
        fprintf(stream, "  %-12s %s\n", (*v)->name, (*v)->summary);
    fprintf(stream, "\n`weft VERB --help` shows a verb's options and an example.\n");
}

int cli_failed(void) {
    const char *trace = getenv("WEFT_TRACE"), *message = weft_error_message();
    fprintf(stderr, "weft: %s\n", *message ? message : "failed without a message");
    if (trace && !strcmp(trace, "1")) fprintf(stderr, "%s\n", weft_error_trail());
    return CLI_FAILED;
}

/* Who closes one of them (`weft ... >&-`, a daemon) wants to hear nothing there, not to have it
 * mixed up with the first file or connection that is opened. */
static void open_standard_streams(void) {
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO) close(fd);
}

/* Output that did not reach its file is a failure, even when all else went well. */
static int written(int code) {
    if (!(fflush(stdout) || ferror(stdout)) || code != CLI_DONE) return code;
    fprintf(stderr, "weft: cannot write the output\n");
    return CLI_FAILED;
}

int main(int argc, char **argv) {
    open_standard_streams();
    if (argc < 2) {
        show_help(stderr);
        return CLI_USAGE;
    }
    const char *word = argv[1];
    if (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help")) {
        show_help(stdout);
        return written(CLI_DONE);
    }
    if (!strcmp(word, "--version")) {
        printf("weft %s\n", weft_version());
        return written(CLI_DONE);
    }
    const char *names[sizeof verbs / sizeof *verbs];
    int count = 0;
    for (const cli_verb *const *v = verbs; *v; v++) {
        if (!strcmp(word, (*v)->name)) {
            /* Where jobs have processes for it, one of those that are started alike. */
            bool serves = *v == &cli_train && weft_launch_is_scheduler();
            return written(serves ? launch_serve() : (*v)->run(*v, argc - 2, argv + 2));
        }
        names[count++] = (*v)->name;
    }
    names[count] = NULL;
    const char *near = cli_nearest(word, names);
    fprintf(stderr, "weft: unknown verb '%s'", word);
    if (near) fprintf(stderr, "; did you mean '%s'?", near);
    fprintf(stderr, "\n");
    show_help(stderr);
    return CLI_USAGE;
}
