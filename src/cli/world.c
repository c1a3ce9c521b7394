/* Verbs that run as one of several processes of a launcher. */
#include "cli.h"

static bool is_loss(weft_status status) {
    return status == WEFT_E_LOST || status == WEFT_E_TIMEOUT;
}

int cli_code_of(weft_status status) {
    return status >= 0 ? CLI_DONE : is_loss(status) ? CLI_AGAIN : CLI_FAILED;
}

int cli_failed_to_join(int rank, weft_status status) {
    (void)cli_failed_rank(rank);
    return cli_code_of(status);
}

int cli_leave(weft_world *world, int code) {
    const weft_status status = weft_world_close(world);
    return code == CLI_FAILED && status < 0 ? cli_code_of(status) : code;
}

static void say_notes(void) {
    const char *note;
    for (int i = 0; (note = weft_launcher_note(i)); i++) cli_say(stderr, "weft: %s\n", note);
}

int cli_find_launcher(weft_launcher *out) {
    if (weft_launcher_find(out) < 0) return cli_failed();
    if (out->rank <= 0)
        say_notes();
    else
        cli_errors_as_json(false);
    return CLI_DONE;
}

static int load_for(int size, const cli_job_source *source, weft_job **out) {
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
    return cli_complain(
        "the job is for %d device%s, but %d processes were started, one device each", devices,
        devices == 1 ? "" : "s", size);
}

int cli_job_load_for(int size, const cli_job_source *source, weft_job **out) {
    cli_job_source with_folder = *source;
    int code = load_for(size, source, out);
    if (code != CLI_DONE || !source->recovery || *(*out)->checkpoint.dir) return code;
    with_folder.into_recovery = true;
    weft_job_free(*out);
    *out = NULL;
    return load_for(size, &with_folder, out);
}
