package segstore.cache;

/** The options of one run; mirrors workload.py. */
final class Options {
    boolean random;
    int size;
    int count;
    int warmupCount;
    int warmupPasses;
    int passes;
    long capacity;
    long seed;
    int insertPercent;
    int liveMax;
    boolean vary;

    static Options parse(String[] arguments) {
        Options options = new Options();
        for (String argument : arguments) {
            String[] pair = argument.split("=", 2);
            switch (pair[0]) {
                case "--random" -> options.random = pair[1].equals("1");
                case "--size" -> options.size = Integer.parseInt(pair[1]);
                case "--count" -> options.count = Integer.parseInt(pair[1]);
                case "--warmup-count" -> options.warmupCount = Integer.parseInt(pair[1]);
                case "--warmup-passes" -> options.warmupPasses = Integer.parseInt(pair[1]);
                case "--passes" -> options.passes = Integer.parseInt(pair[1]);
                case "--capacity" -> options.capacity = Long.parseLong(pair[1]);
                case "--seed" -> options.seed = Long.parseLong(pair[1]);
                case "--insert-percent" -> options.insertPercent = Integer.parseInt(pair[1]);
                case "--live-max" -> options.liveMax = Integer.parseInt(pair[1]);
                case "--vary" -> options.vary = pair[1].equals("1");
                default -> throw new IllegalArgumentException(argument);
            }
        }
        return options;
    }
}
