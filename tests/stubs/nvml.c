/* A libnvidia-ml.so.1 that tells of the machine in the environment:
   STUB_NVML 0, STUB_DRIVER 535.104.05, STUB_CARDS "NAME:MIB:USED:MIG:SLICE=MIB,...:ECC:THROTTLE;...";
   STUB_PID of a process that computes; a "-" field is one that this driver does not tell.
   Two more fields are UTIL:TEMPERATURE. What happens while it runs stands in the file STUB_NEWS:
   "cards=..." in place of STUB_CARDS, "lost", "xid=79", "hang" or "crash". */
#include "fields.h"

#include <unistd.h>

/* What stands in the file of news after a word; NULL when it does not begin with it. */
static const char *news(const char *word) {
  static char text[1024];
  FILE *file = getenv("STUB_NEWS") ? fopen(getenv("STUB_NEWS"), "r") : NULL;
  if (!file) return NULL;
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  return strncmp(text, word, strlen(word)) ? NULL : text + strlen(word);
}

static const char *cards(void) {
  const char *newer = news("cards=");
  return newer ? newer : given("STUB_CARDS", "");
}

typedef struct {
  int card, slice;
} handle;
static handle handles[64];

int nvmlInit_v2(void) { return number("STUB_NVML", 0); }
int nvmlShutdown(void) { return 0; }

#ifndef OLD
const char *nvmlErrorString(int code) {
  return code == 18 ? "Driver/library version mismatch" : code == 999 ? "Unknown Error" : code == 9 ? "Driver Not Loaded" : "";
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = number("STUB_CUDA", 12020);
  return 0;
}
#endif

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
  return part(given("STUB_DRIVER", "535.104.05"), '\n', 0, text, size) ? 0 : 3;
}

int nvmlDeviceGetCount_v2(unsigned *found) {
  *found = (unsigned)count(cards(), ';');
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle **device) {
  *device = &handles[index];
  (*device)->card = (int)index;
  (*device)->slice = -1;
  return 0;
}

static int field(const handle *device, int index, char *out, size_t size) {
  char row[512];
  return part(cards(), ';', device->card, row, sizeof row) && part(row, ':', index, out, size) &&
         strcmp(out, "-") != 0;
}

static int slice(const handle *device, int index, char *name, char *mib) {
  char all[256], one[64];
  return field(device, 4, all, sizeof all) && part(all, ',', device->slice, one, sizeof one) &&
         part(one, '=', 0, name, 64) && part(one, '=', 1, mib, 32) && index >= 0;
}

int nvmlDeviceGetName(const handle *device, char *name, unsigned size) {
  char mib[32], of[64];
  if (device->slice < 0) return field(device, 0, name, size) ? 0 : 4;
  if (!slice(device, 0, of, mib)) return 4;
  snprintf(name, size, "NVIDIA MIG %s", of);
  return 0;
}

int nvmlDeviceGetMemoryInfo(const handle *device, unsigned long long *values) {
  char total[32], used[32] = "0", name[64];
  int known = device->slice < 0 ? field(device, 1, total, sizeof total) && field(device, 2, used, sizeof used)
                                : slice(device, 0, name, total);
  if (!known) return 4; /* no permission */
  values[0] = (unsigned long long)atoll(total) << 20;
  values[2] = (unsigned long long)atoll(used) << 20;
  values[1] = values[0] - values[2];
  return 0;
}

#ifndef OLD
int nvmlDeviceGetMigMode(const handle *device, unsigned *current, unsigned *pending) {
  char text[8];
  if (!field(device, 3, text, sizeof text)) return 3; /* not supported */
  *current = *pending = !strcmp(text, "on");
  return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(const handle *device, unsigned *most) {
  (void)device;
  *most = 7;
  return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(const handle *device, unsigned index, handle **found) {
  char name[64], mib[32];
  handle *made = &handles[16 + index];
  made->card = device->card;
  made->slice = (int)index;
  *found = made;
  return slice(made, 0, name, mib) ? 0 : 6; /* not found */
}

typedef struct {
  unsigned pid;
  unsigned long long memory;
  unsigned instance, compute_instance;
} process;

int nvmlDeviceGetComputeRunningProcesses_v3(const handle *device, unsigned *found, process *rows) {
  (void)device;
  *found = getenv("STUB_PID") ? 1 : 0;
  if (*found) rows[0] = (process){(unsigned)number("STUB_PID", 0), ~0ULL, ~0U, ~0U}; /* its memory is not told */
  return 0;
}
#endif

static int big(const handle *device, int index, unsigned long long *value) {
  char text[32];
  if (!field(device, index, text, sizeof text)) return 3;
  *value = strtoull(text, NULL, 0);
  return 0;
}

int nvmlDeviceGetTotalEccErrors(const handle *device, int kind, int counter, unsigned long long *errors) {
  (void)kind;
  (void)counter;
  return big(device, 5, errors);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(const handle *device, unsigned long long *mask) {
  return big(device, 6, mask);
}

#ifndef OLD
int nvmlDeviceGetUtilizationRates(const handle *device, unsigned *rates) {
  unsigned long long value;
  if (news("hang")) pause();
  if (news("crash")) abort();
  if (news("lost")) return 15;
  if (big(device, 7, &value)) return 3;
  rates[0] = (unsigned)value;
  rates[1] = 0;
  return 0;
}

int nvmlDeviceGetTemperature(const handle *device, int sensor, unsigned *degrees) {
  unsigned long long value;
  (void)sensor;
  if (big(device, 8, &value)) return 3;
  *degrees = (unsigned)value;
  return 0;
}

typedef struct {
  handle *device;
  unsigned long long type, data;
  unsigned instance, compute_instance;
} event;
static handle *heard;
static int told;

int nvmlEventSetCreate(void **events) {
  *events = &told;
  return 0;
}

int nvmlDeviceRegisterEvents(handle *device, unsigned long long types, void *events) {
  if (events != &told || types != 8) return 2; /* invalid argument */
  heard = device;
  return 0;
}

int nvmlEventSetWait_v2(void *events, event *found, unsigned milliseconds) {
  const char *xid = news("xid=");
  if (events != &told || milliseconds != 0 || !xid || told) return 10; /* timeout */
  told = 1;
  *found = (event){heard, 8, strtoull(xid, NULL, 10), 0, 0};
  return 0;
}
#endif
