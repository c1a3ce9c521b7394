/* Finds and loads modules/mpi.c, built for one MPI.
 *
 * Open MPI and MPICH have different binary interfaces, so code linked to one cannot serve the
 * other. Which one is needed is known only at run time. A module is looked for in
 * WEFT_MODULE_PATH, beside the file that holds this code (a build tree), and in the places of an
 * installed tree. It stays loaded, because MPI libraries cannot be unloaded safely. */
#include "launch/join/mpi_module.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "weft/version.h"

#ifndef WEFT_LIBRARY_DIR /* where libraries are installed, below the prefix */
#define WEFT_LIBRARY_DIR "lib"
#endif

static const char here[] = ""; /* an address in the file that this code is in */

enum { PATH_BYTES = 1024, LOOKED_BYTES = 1024 };

typedef weft_status module_transport(weft_status (*tell)(weft_status, const char *), double seconds,
                                     weft_transport *out);

/* The folder of the file that holds `address`, of the program when that is NULL; "" if unknown. */
static void folder_of(const void *address, char folder[PATH_BYTES]) {
    Dl_info info;
    folder[0] = '\0';
    if (!address) {
        ssize_t length = readlink("/proc/self/exe", folder, PATH_BYTES - 1);
        folder[length > 0 ? length : 0] = '\0';
    } else if (dladdr(address, &info) && info.dli_fname && strchr(info.dli_fname, '/')) {
        snprintf(folder, PATH_BYTES, "%s", info.dli_fname);
    }
    char *slash = strrchr(folder, '/');
    if (slash) *slash = '\0';
}

/* Whether `folder``below` holds the module: then its path; else it is added to `looked`. */
static bool look(const char *folder, const char *below, const char *flavour, char path[PATH_BYTES],
                 char looked[LOOKED_BYTES]) {
    if (!folder[0]) return false;
    snprintf(path, PATH_BYTES, "%s%s/weft-%s.so", folder, below, flavour);
    if (access(path, R_OK) == 0) return true;
    size_t used = strlen(looked);
    snprintf(looked + used, LOOKED_BYTES - used, "%s%s%s", used ? ", " : "", folder, below);
    return false;
}

static bool find(const char *flavour, const char *given, char path[PATH_BYTES],
                 char looked[LOOKED_BYTES]) {
    char program[PATH_BYTES], code[PATH_BYTES];
    looked[0] = '\0';
    if (given[0]) return look(given, "", flavour, path, looked); /* then nowhere else */
    folder_of(NULL, program);
    folder_of(here, code);
    return look(program, "", flavour, path, looked) ||
           look(program, "/../" WEFT_LIBRARY_DIR "/weft", flavour, path, looked) ||
           (strcmp(program, code) != 0 &&
            (look(code, "", flavour, path, looked) || look(code, "/weft", flavour, path, looked)));
}

static const char *name_of(const char *flavour) {
    return strcmp(flavour, "openmpi") == 0 ? "Open MPI"
           : strcmp(flavour, "mpich") == 0 ? "MPICH"
                                           : flavour;
}

weft_status wefti_mpi_module_open(const char *flavour, const char *folder, double seconds,
                                  weft_transport *out) {
    char path[PATH_BYTES], looked[LOOKED_BYTES];
    WEFT_REQUIRE(flavour[0] && !strchr(flavour, '/'), WEFT_E_ARG, "'%s' is not the name of an MPI",
                 flavour);
    WEFT_REQUIRE(find(flavour, folder, path, looked), WEFT_E_NOT_FOUND,
                 "this weft has no module for %s: there is no weft-%s.so in %s; build weft where "
                 "%s's mpicc is installed, or start with weft launch",
                 name_of(flavour), flavour, looked, name_of(flavour));
    /* Open MPI's plugins look up its symbols globally. */
    void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    WEFT_REQUIRE(module, WEFT_E_IO, "cannot load the module for %s: %s", name_of(flavour),
                 dlerror());
    const char *version = dlsym(module, "weft_module_version");
    void *entry = dlsym(module, "weft_module_transport");
    WEFT_REQUIRE(version && entry, WEFT_E_CORRUPT, "%s is not a module of weft", path);
    WEFT_REQUIRE(strcmp(version, WEFT_VERSION) == 0, WEFT_E_MISMATCH,
                 "%s is of weft %s, this is weft %s", path, version, WEFT_VERSION);
    module_transport *transport;
    memcpy(&transport, &entry, sizeof transport); /* as POSIX has it, whatever C says of it */
    return transport(weft_error_raise, seconds, out);
}
