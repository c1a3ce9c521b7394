/* Settings that users give for all jobs alike: WEFT_COMM, WEFT_INTERFACE and others. */
#include "launch/env/reader.h"

#include <stdio.h>
#include <string.h>

static weft_status path_of(wefti_variables v, const char *name, char out[WEFTI_PATH_TEXT]) {
    const char *path = wefti_variable(v, name);
    size_t bytes = path ? strlen(path) : 0;
    WEFT_REQUIRE(bytes < WEFTI_PATH_TEXT, WEFT_E_ARG, "%s has %zu bytes; it may have %d", name,
                 bytes, WEFTI_PATH_TEXT - 1);
    if (path) memcpy(out, path, bytes + 1);
    return WEFT_OK;
}

weft_status wefti_settings_read(wefti_variables v, wefti_settings *out) {
    int tls = 0, streams = 0;
    *out = (wefti_settings){0};
    WEFT_TRY(wefti_variable_number(v, "WEFT_TLS", 0, 1, &tls));
    WEFT_TRY(wefti_variable_number(v, "WEFT_STREAMS", 1, WEFTI_STREAMS_MAX, &streams));
    out->tls = tls == 1;
    out->streams = streams;
    WEFT_TRY(wefti_variable_word(v, "WEFT_COMM", out->communicator, sizeof out->communicator));
    WEFT_TRY(wefti_variable_word(v, "WEFT_INTERFACE", out->interface, sizeof out->interface));
    const char *job = wefti_variable(v, "WEFT_JOB");
    (void)snprintf(out->job, sizeof out->job, "%.200s", job ? job : "");
    WEFT_TRY(wefti_variable_word(v, "WEFT_HOST_ID", out->host_id, sizeof out->host_id));
    WEFT_TRY(wefti_variable_number(v, "WEFT_RESTART", 0, INT32_MAX, &out->restarts));
    WEFT_TRY(wefti_variable_seconds(v, "WEFT_RESTART_WINDOW", &out->restart_window_seconds));
    WEFT_TRY(wefti_variable_seconds(v, "WEFT_JOIN_SECONDS", &out->join_seconds));
    WEFT_TRY(wefti_variable_seconds(v, "WEFT_HEARTBEAT_SECONDS", &out->heartbeat_seconds));
    WEFT_TRY(wefti_variable_seconds(v, "WEFT_WAIT_SECONDS", &out->wait_seconds));
    WEFT_TRY(wefti_variable_word(v, "WEFT_STANDBY", out->standby, sizeof out->standby));
    WEFT_TRY(wefti_variable_word(v, "WEFT_SERVERS", out->servers, sizeof out->servers));
    WEFT_TRY(path_of(v, "WEFT_SECRET_FILE", out->secret_file));
    WEFT_TRY(path_of(v, "WEFT_LINKS", out->links));
    WEFT_TRY(path_of(v, "WEFT_MODULE_PATH", out->module_path));
    WEFT_TRY(path_of(v, "HOME", out->home));
    WEFT_TRY(path_of(v, "TMPDIR", out->temporary));
    if (!*out->temporary) memcpy(out->temporary, "/tmp", sizeof "/tmp");
    out->commands = wefti_variable(v, "PATH");
    return WEFT_OK;
}

static weft_status override_text(const char *what, const char *by, char *out, size_t bytes) {
    size_t length = by ? strlen(by) : 0;
    WEFT_REQUIRE(length < bytes, WEFT_E_ARG, "the %s has %zu bytes; it may have %zu", what, length,
                 bytes - 1);
    if (length) memcpy(out, by, length + 1);
    return WEFT_OK;
}

static void override_seconds(double by, double *out) {
    if (by > 0) *out = by;
}

weft_status wefti_settings_override(wefti_settings *set, const wefti_override *by) {
    WEFT_TRY(override_text("communicator's name", by->communicator, set->communicator,
                           sizeof set->communicator));
    WEFT_TRY(
        override_text("interface's name", by->interface, set->interface, sizeof set->interface));
    WEFT_TRY(override_text("path of links", by->links, set->links, sizeof set->links));
    set->tls = set->tls || by->tls;
    if (by->restarts > 0) set->restarts = by->restarts;
    override_seconds(by->restart_window_seconds, &set->restart_window_seconds);
    override_seconds(by->join_seconds, &set->join_seconds);
    override_seconds(by->heartbeat_seconds, &set->heartbeat_seconds);
    override_seconds(by->wait_seconds, &set->wait_seconds);
    return WEFT_OK;
}
