package alluvium.flink;

import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkOutput;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;

/** Watermarks where the file of events has them. */
final class Watermarks implements WatermarkGenerator<Event> {
    static WatermarkStrategy<Event> ofEvents() {
        return WatermarkStrategy.<Event>forGenerator(context -> new Watermarks())
                .withTimestampAssigner((event, before) -> event.time);
    }

    @Override
    public void onEvent(Event event, long time, WatermarkOutput output) {
        if (event.watermark != Event.NONE) {
            // Flink's watermark is a time that is over.
            output.emitWatermark(new Watermark(event.watermark - 1));
        }
    }

    @Override
    public void onPeriodicEmit(WatermarkOutput output) {}
}
