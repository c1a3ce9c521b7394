/* Verbs that run as one of several processes of a launcher. */
#include "cli.h"

#include "weft/world.h"

int cli_failed_rank(int rank) {
    if (rank <= 0 || weft_error_rank() != WEFT_RANK_OWN) return cli_failed();
    cli_say(stderr, "weft: rank %d: %s\n", rank, weft_error_message());
    return CLI_FAILED;
}

static void say_notes(void) {
    const char *note;
    for (int i = 0; (note = weft_launcher_note(i)); i++) cli_say(stderr, "weft: %s\n", note);
}

int cli_find_launcher(weft_launcher *out) {
    if (weft_launcher_find(out) < 0) return cli_failed();
    if (out->rank <= 0) say_notes();
    return CLI_DONE;
}

int cli_job_load_for(int size, const cli_job_source *source, weft_job **out) {
    int code = cli_job_load(source, out);
    if (code != CLI_DONE || size <= 1) return code;
    int devices = (int)(*out)->parallel.devices;
    if (devices == size) return CLI_DONE;
    weft_job_free(*out);
    *out = NULL;
    if (devices == 1 && !source->devices && !source->plan) {
        cli_job_source for_size = *source;
        for_size.devices = size;
        return cli_job_load(&for_size, out);
    }
    cli_say(stderr,
            "weft: the job is for %d device%s, but %d processes were started, one device each\n",
            devices, devices == 1 ? "" : "s", size);
    return CLI_FAILED;
}
